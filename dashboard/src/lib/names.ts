// Names come from strangers. What cannot be seen in them, or turns the text around them, is shown as its code.

// Controls, zero-width characters, line separators, and everything that changes the direction of text.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/u;

export interface NamePiece {
  text: string;
  isCode: boolean;
}

/** Cut a name into what can be shown as it is, and the codes of what cannot. */
export function splitName(name: string): NamePiece[] {
  const pieces: NamePiece[] = [];
  for (const character of name) {
    const isCode = UNSEEN.test(character);
    const text = isCode ? codeOf(character) : character;
    const last = pieces.at(-1);
    if (last && !isCode && !last.isCode) last.text += text;
    else pieces.push({ text, isCode });
  }
  return pieces;
}

/** The name as plain text, for titles and labels, where no element can mark a code. */
export function plainName(name: string): string {
  return splitName(name)
    .map((piece) => (piece.isCode ? `[${piece.text}]` : piece.text))
    .join("");
}

function codeOf(character: string): string {
  return `U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}`;
}
