import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { Entrance } from "./app/Entrance";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/layout.css";
import "./styles/parts.css";
import "./styles/drawings.css";
import "./styles/pages.css";
import "./styles/sign-in.css";

const root = document.getElementById("root");
if (root) {
  createRoot(root).render(
    <StrictMode>
      <Entrance />
    </StrictMode>,
  );
}
