import { plainName, splitName } from "../lib/names";

/** A name from outside: text whatever it holds, apart from the direction of the text around it. */
export function Name({ children, mono = false }: { children: string; mono?: boolean }) {
  return (
    <bdi className={mono ? "mono" : undefined} title={plainName(children)}>
      {splitName(children).map((piece, index) =>
        piece.isCode ? (
          <span className="control-char" key={index}>
            {piece.text}
          </span>
        ) : (
          piece.text
        ),
      )}
    </bdi>
  );
}
