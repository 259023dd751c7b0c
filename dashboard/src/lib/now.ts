import { useEffect, useState } from "react";
import { coordinatorNowS } from "../api/fetch";

export interface Now {
  /** By the coordinator's clock: what its answers are dated by. */
  coordinatorS: number;
  /** By this machine's clock: what the arrival of an answer is dated by. */
  localS: number;
}

/** The time, told anew every second. */
export function useNow(): Now {
  const [now, setNow] = useState(readNow);
  useEffect(() => {
    const timer = setInterval(() => setNow(readNow()), 1_000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

function readNow(): Now {
  return { coordinatorS: coordinatorNowS(), localS: Date.now() / 1000 };
}
