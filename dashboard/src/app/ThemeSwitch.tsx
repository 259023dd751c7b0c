import { chooseTheme, useTheme, type Theme } from "../lib/theme";

const CHOICES: readonly { theme: Theme; label: string }[] = [
  { theme: "system", label: "Auto" },
  { theme: "light", label: "Light" },
  { theme: "dark", label: "Dark" },
];

export function ThemeSwitch() {
  const { theme } = useTheme();
  return (
    <div className="segments" role="group" aria-label="Theme">
      {CHOICES.map((choice) => (
        <button key={choice.theme} type="button" aria-pressed={theme === choice.theme} onClick={() => chooseTheme(choice.theme)}>
          {choice.label}
        </button>
      ))}
    </div>
  );
}
