import { useEffect, useRef, useState, type KeyboardEvent } from "react";
import { readToken, useTheme } from "../lib/theme";

export interface Bar {
  label: string;
  value: number;
}

interface BarsProps {
  label: string;
  bars: readonly Bar[];
  format: (value: number) => string;
  height?: number;
}

/** One bar a worker on a canvas: also with 1,000 of them the uneven one can be seen, and read. */
export function Bars({ label, bars, format, height = 96 }: BarsProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [at, setAt] = useState<number | null>(null);
  const { isDark } = useTheme();
  const most = bars.reduce((high, bar) => Math.max(high, bar.value), 0);

  useEffect(() => {
    const element = canvas.current?.parentElement;
    if (!element) return;
    const watching = new ResizeObserver(() => setWidth(element.clientWidth));
    watching.observe(element);
    return () => watching.disconnect();
  }, []);

  useEffect(() => {
    const element = canvas.current;
    const context = element?.getContext("2d");
    if (!element || !context || width === 0) return;
    element.width = width * devicePixelRatio;
    element.height = height * devicePixelRatio;
    context.scale(devicePixelRatio, devicePixelRatio);
    const each = Math.min(48, width / Math.max(1, bars.length));
    const gap = each > 6 ? 2 : each > 3 ? 1 : 0;
    bars.forEach((bar, index) => {
      const tall = most > 0 ? (bar.value / most) * (height - 1) : 0;
      context.fillStyle = readToken(index === at ? "--c2" : "--c1");
      context.fillRect(index * each, height - 1 - tall, Math.max(0.75, each - gap), tall);
    });
    context.fillStyle = readToken("--line-strong");
    context.fillRect(0, height - 1, width, 1);
  }, [bars, most, width, height, at, isDark]);

  const press = (event: KeyboardEvent) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    event.preventDefault();
    const move = event.key === "ArrowRight" ? 1 : -1;
    setAt((old) => Math.min(bars.length - 1, Math.max(0, old === null ? 0 : old + move)));
  };
  const chosen = at === null ? undefined : bars[at];
  return (
    <div className="bars">
      <canvas
        ref={canvas}
        tabIndex={0}
        role="img"
        aria-label={`${label}. ${bars.length} bars, the highest ${format(most)}. Arrow keys read single bars.`}
        style={{ height, width: "100%" }}
        onPointerMove={(event) => {
          const box = event.currentTarget.getBoundingClientRect();
          const each = Math.min(48, box.width / Math.max(1, bars.length));
          const index = Math.floor((event.clientX - box.left) / each);
          setAt(index < bars.length ? index : null);
        }}
        onPointerLeave={() => setAt(null)}
        onBlur={() => setAt(null)}
        onKeyDown={press}
      />
      <p className="panel-note" aria-live="polite">
        {chosen ? `${chosen.label}: ${format(chosen.value)}` : "One bar for each worker, by rank; point at a bar to read it"}
      </p>
    </div>
  );
}
