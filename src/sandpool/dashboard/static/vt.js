// The screen of a terminal: takes in output as xterm understands it, and keeps lines of cells. It touches no page.
//
// It has what shells, editors and full-screen programs use: cursor movement, colours, scroll regions, insertion and
// deletion, the alternate screen, wide characters, bracketed paste and reports of position. What it does not know it
// ignores. Output is not trusted: all numbers are bounded, strings of the system are cut, and nothing is ever sent
// back that the output chose itself.

// @ts-check

const SCROLLBACK = 2000;
const MAX_PARAMETERS = 32;
const MAX_NUMBER = 9999;
const MAX_STRING = 256;

/** @typedef {{fg: string, bg: string, bold: boolean, dim: boolean, italic: boolean, underline: boolean, inverse: boolean, hidden: boolean, strike: boolean}} Style */
/** One character, or "" for the second half of a wide one. @typedef {{text: string, style: Style}} Cell */
/** `version` grows when the line changes. @typedef {{cells: Cell[], version: number}} Line */

/** @type {Style} */
const PLAIN = Object.freeze({ fg: "", bg: "", bold: false, dim: false, italic: false, underline: false, inverse: false, hidden: false, strike: false });

// Characters of two columns: East Asian scripts, full-width forms and emoji.
const WIDE = /[\u1100-\u115f\u2e80-\u303e\u3041-\u33ff\u3400-\u4dbf\u4e00-\u9fff\ua000-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{1f300}-\u{1f64f}\u{1f680}-\u{1f6ff}\u{1f900}-\u{1f9ff}\u{1fa70}-\u{1faff}\u{20000}-\u{3fffd}]/u;
const ZERO = /[\p{Mn}\p{Me}\u200b-\u200f\u2060\ufe00-\ufe0f]/u;
/** Lines and corners that programs draw with the alternate character set. */
const DRAWING = new Map([..."`afgjklmnopqrstuvwxyz{|}~"].map((letter, index) => [letter, [..."◆▒°±┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·"][index]]));

export class Screen {
  /** `reply` sends bytes to the program that asked. @param {number} columns @param {number} rows @param {(text: string) => void} reply */
  constructor(columns, rows, reply) {
    this.columns = columns;
    this.rows = rows;
    this.reply = reply;
    this.title = "";
    this.bells = 0;
    /** @type {Line[]} */
    this.scrollback = [];
    /** Lines that were dropped from the beginning of the scrollback. */
    this.dropped = 0;
    this.versions = 0;
    /** @type {Style} */
    this.style = PLAIN;
    this.lines = this.blankLines(rows);
    /** @type {Line[] | null} */
    this.mainLines = null;
    this.x = 0;
    this.y = 0;
    this.top = 0;
    this.bottom = rows - 1;
    /** @type {{x: number, y: number, style: Style, drawing: boolean}} */
    this.saved = { x: 0, y: 0, style: PLAIN, drawing: false };
    this.autowrap = true;
    this.origin = false;
    this.insert = false;
    /** @type {boolean} */
    this.drawing = false;
    this.applicationKeys = false;
    this.bracketedPaste = false;
    this.cursorVisible = true;
    this.wrapPending = false;
    this.tabs = new Set();
    for (let column = 8; column < MAX_NUMBER; column += 8) this.tabs.add(column);
    /** @type {(character: string) => void} */
    this.state = this.ground;
    this.sequence = "";
    this.last = " ";
  }

  /** Start anew, with the title and the number of bells as they are. */
  reset() {
    const { title, bells } = this;
    Object.assign(this, new Screen(this.columns, this.rows, this.reply), { title, bells });
  }

  /** Take in output. @param {string} text */
  write(text) {
    for (const character of text) this.state(character);
  }

  /** @param {number} columns @param {number} rows */
  resize(columns, rows) {
    if (columns === this.columns && rows === this.rows) return;
    for (const screen of this.mainLines ? [this.lines, this.mainLines] : [this.lines]) {
      while (screen.length > rows) {
        // Empty lines below the cursor go first; the others move to the scrollback.
        if (screen === this.lines && this.y < screen.length - 1 && isBlank(screen[screen.length - 1])) screen.pop();
        else {
          const line = /** @type {Line} */ (screen.shift());
          if (screen === this.lines && !this.mainLines) this.keep(line);
          if (screen === this.lines) this.y = Math.max(0, this.y - 1);
        }
      }
      while (screen.length < rows) screen.push(this.blankLine());
    }
    this.columns = columns;
    this.rows = rows;
    this.top = 0;
    this.bottom = rows - 1;
    this.x = Math.min(this.x, columns - 1);
    this.y = Math.min(this.y, rows - 1);
    this.wrapPending = false;
    for (const line of this.lines) this.touch(line);
  }

  /** The text of the screen, without white space at the ends of lines. */
  text() {
    return this.lines.map((line) => line.cells.map((cell) => cell.text).join("").trimEnd()).join("\n").trimEnd();
  }

  // -- states of the parser -------------------------------------------------------------------------------------------

  /** @param {string} character */
  ground(character) {
    const code = /** @type {number} */ (character.codePointAt(0));
    if (code >= 0x20 && code !== 0x7f) this.print(character);
    else this.control(code);
  }

  /** @param {number} code */
  control(code) {
    if (code === 0x1b) this.begin(this.escape);
    else if (code === 0x0d) this.moveTo(0, this.y);
    else if (code >= 0x0a && code <= 0x0c) this.lineFeed();
    else if (code === 0x08) this.moveTo(Math.max(0, this.x - 1), this.y);
    else if (code === 0x09) this.tab();
    else if (code === 0x07) this.bells += 1;
    else if (code === 0x0e) this.drawing = true;
    else if (code === 0x0f) this.drawing = false;
    else if (code === 0x18 || code === 0x1a) this.state = this.ground;
  }

  /** @param {(character: string) => void} state */
  begin(state) {
    this.sequence = "";
    this.state = state;
  }

  /** @param {string} character */
  escape(character) {
    this.state = this.ground;
    if (character === "[") this.begin(this.csi);
    else if (character === "]") this.begin(this.osc);
    else if ("PX^_".includes(character)) this.begin(this.ignoredString);
    else if ("()*+".includes(character)) this.begin(this.charset);
    else if ("#%".includes(character)) this.begin(this.ignoredCharacter);
    else if (character === "7") this.saveCursor();
    else if (character === "8") this.restoreCursor();
    else if (character === "D") this.lineFeed();
    else if (character === "E") {
      this.moveTo(0, this.y);
      this.lineFeed();
    } else if (character === "M") this.reverseLineFeed();
    else if (character === "H") this.tabs.add(this.x);
    else if (character === "c") this.reset();
    else if (character === "\x1b") this.begin(this.escape);
  }

  /** @param {string} character */
  charset(character) {
    this.drawing = character === "0";
    this.state = this.ground;
  }

  ignoredCharacter() {
    this.state = this.ground;
  }

  /** @param {string} character */
  csi(character) {
    const code = /** @type {number} */ (character.codePointAt(0));
    if (code < 0x20) this.control(code);
    else if (code >= 0x40 && code <= 0x7e) {
      this.state = this.ground;
      this.command(character, this.sequence);
    } else if (this.sequence.length < MAX_STRING) this.sequence += character;
  }

  /** @param {string} character */
  osc(character) {
    if (character === "\x07" || character === "\x9c") this.endOsc(this.ground);
    else if (character === "\x1b") this.endOsc(this.ignoredCharacter);
    else if (this.sequence.length < MAX_STRING) this.sequence += character;
  }

  /** @param {(character: string) => void} next */
  endOsc(next) {
    const [kind, ...rest] = this.sequence.split(";");
    if (kind === "0" || kind === "2") this.title = rest.join(";").replace(/\p{C}/gu, "");
    this.state = next;
  }

  /** @param {string} character */
  ignoredString(character) {
    if (character === "\x1b") this.state = this.ignoredCharacter;
    else if (character === "\x9c" || character === "\x07" || character === "\x18") this.state = this.ground;
  }

  // -- commands -------------------------------------------------------------------------------------------------------

  /** @param {string} final @param {string} sequence */
  command(final, sequence) {
    const prefix = /^[?>=<!]/.test(sequence) ? sequence[0] : "";
    const body = sequence.slice(prefix.length);
    const intermediate = body.replace(/[0-9;:]/g, "");
    const numbers = body
      .split(";")
      .slice(0, MAX_PARAMETERS)
      .map((each) => Math.min(MAX_NUMBER, parseInt(each, 10) || 0));
    if (intermediate) {
      if (intermediate === "!" && final === "p") this.reset();
      return;
    }
    if (prefix === "!" && final === "p") this.reset();
    else if (prefix === "?" && (final === "h" || final === "l")) for (const mode of numbers) this.privateMode(mode, final === "h");
    else if (prefix === "" || (prefix === "?" && "JK".includes(final))) this.plainCommand(final, numbers, body);
    else if (prefix === ">" && final === "c") this.reply("\x1b[>0;0;0c");
  }

  /** @param {string} final @param {number[]} numbers @param {string} body */
  plainCommand(final, numbers, body) {
    const [first] = numbers;
    const count = Math.max(1, first);
    const top = this.origin ? this.top : 0;
    switch (final) {
      case "A": return this.moveTo(this.x, Math.max(this.y >= this.top ? this.top : 0, this.y - count));
      case "B": case "e": return this.moveTo(this.x, Math.min(this.y <= this.bottom ? this.bottom : this.rows - 1, this.y + count));
      case "C": case "a": return this.moveTo(this.x + count, this.y);
      case "D": return this.moveTo(this.x - count, this.y);
      case "E": return this.moveTo(0, this.y + count);
      case "F": return this.moveTo(0, this.y - count);
      case "G": case "`": return this.moveTo(count - 1, this.y);
      case "H": case "f": return this.moveTo(Math.max(1, numbers[1] ?? 1) - 1, top + count - 1);
      case "d": return this.moveTo(this.x, top + count - 1);
      case "I": for (let n = 0; n < Math.min(count, this.columns); n += 1) this.tab(); return;
      case "J": return this.eraseScreen(first);
      case "K": return this.eraseLine(first);
      case "L": return this.shiftLines(this.y, count, true);
      case "M": return this.shiftLines(this.y, count, false);
      case "S": return this.shiftLines(this.top, count, false);
      case "T": return this.shiftLines(this.top, count, true);
      case "P": return this.deleteCells(count);
      case "@": return this.insertCells(count);
      case "X": return this.erase(this.y, this.x, this.x + count);
      case "b": for (let n = 0; n < Math.min(count, this.columns * this.rows); n += 1) this.print(this.last); return;
      case "c": return this.reply("\x1b[?1;2c");
      case "n":
        if (first === 6) this.reply(`\x1b[${this.y - top + 1};${this.x + 1}R`);
        else if (first === 5) this.reply("\x1b[0n");
        return;
      case "h": case "l": if (numbers.includes(4)) this.insert = final === "h"; return;
      case "m": return this.setStyle(body);
      case "r": {
        const bottom = Math.min(this.rows, numbers[1] || this.rows);
        if (count < bottom) {
          this.top = count - 1;
          this.bottom = bottom - 1;
          this.moveTo(0, this.origin ? this.top : 0);
        }
        return;
      }
      case "s": return this.saveCursor();
      case "u": return this.restoreCursor();
      case "g": if (first === 3) this.tabs.clear(); else this.tabs.delete(this.x); return;
      default:
    }
  }

  /** @param {number} mode @param {boolean} on */
  privateMode(mode, on) {
    if (mode === 1) this.applicationKeys = on;
    else if (mode === 6) {
      this.origin = on;
      this.moveTo(0, on ? this.top : 0);
    } else if (mode === 7) this.autowrap = on;
    else if (mode === 25) this.cursorVisible = on;
    else if (mode === 2004) this.bracketedPaste = on;
    else if (mode === 47 || mode === 1047 || mode === 1049) this.alternateScreen(on, mode === 1049);
  }

  /** @param {boolean} on @param {boolean} withCursor */
  alternateScreen(on, withCursor) {
    if (on === (this.mainLines !== null)) return;
    if (on) {
      if (withCursor) this.saveCursor();
      this.mainLines = this.lines;
      this.lines = this.blankLines(this.rows);
    } else {
      this.lines = /** @type {Line[]} */ (this.mainLines);
      this.mainLines = null;
      for (const line of this.lines) this.touch(line);
      if (withCursor) this.restoreCursor();
    }
    this.top = 0;
    this.bottom = this.rows - 1;
  }

  /** Select graphic rendition. @param {string} body */
  setStyle(body) {
    const codes = body.split(/[;:]/).slice(0, MAX_PARAMETERS).map((each) => parseInt(each, 10) || 0);
    let style = { ...this.style };
    for (let index = 0; index < codes.length; index += 1) {
      const code = codes[index];
      if (code === 0) style = { ...PLAIN };
      else if (code === 1) style.bold = true;
      else if (code === 2) style.dim = true;
      else if (code === 3) style.italic = true;
      else if (code === 4) style.underline = true;
      else if (code === 7) style.inverse = true;
      else if (code === 8) style.hidden = true;
      else if (code === 9) style.strike = true;
      else if (code === 22) style.bold = style.dim = false;
      else if (code === 23) style.italic = false;
      else if (code === 24) style.underline = false;
      else if (code === 27) style.inverse = false;
      else if (code === 28) style.hidden = false;
      else if (code === 29) style.strike = false;
      else if (code >= 30 && code <= 37) style.fg = String(code - 30);
      else if (code >= 90 && code <= 97) style.fg = String(code - 82);
      else if (code >= 40 && code <= 47) style.bg = String(code - 40);
      else if (code >= 100 && code <= 107) style.bg = String(code - 92);
      else if (code === 39) style.fg = "";
      else if (code === 49) style.bg = "";
      else if (code === 38 || code === 48) {
        const [colour, used] = extendedColour(codes.slice(index + 1));
        if (code === 38) style.fg = colour;
        else style.bg = colour;
        index += used;
      }
    }
    this.style = Object.freeze(style);
  }

  // -- the screen -----------------------------------------------------------------------------------------------------

  /** @param {string} character */
  print(character) {
    if (ZERO.test(character)) {
      const cell = this.lines[this.y].cells[Math.max(0, this.x - (this.wrapPending ? 0 : 1))];
      if (cell.text && cell.text.length < 16) cell.text += character;
      this.touch(this.lines[this.y]);
      return;
    }
    const shown = this.drawing ? DRAWING.get(character) ?? character : character;
    const width = WIDE.test(shown) ? 2 : 1;
    if (this.autowrap && (this.wrapPending || this.x + width > this.columns)) {
      this.moveTo(0, this.y);
      this.lineFeed();
    }
    const line = this.lines[this.y];
    if (this.insert) this.insertCells(width);
    this.put(line, this.x, { text: shown, style: this.style });
    if (width === 2 && this.x + 1 < this.columns) this.put(line, this.x + 1, { text: "", style: this.style });
    this.last = shown;
    this.wrapPending = this.x + width >= this.columns;
    this.x = Math.min(this.columns - 1, this.x + width);
  }

  /** @param {Line} line @param {number} x @param {Cell} cell */
  put(line, x, cell) {
    while (line.cells.length < x) line.cells.push(this.blank());
    line.cells[x] = cell;
    this.touch(line);
  }

  /** @param {number} x @param {number} y */
  moveTo(x, y) {
    this.x = Math.min(this.columns - 1, Math.max(0, x));
    this.y = Math.min(this.rows - 1, Math.max(0, y));
    this.wrapPending = false;
  }

  lineFeed() {
    if (this.y === this.bottom) this.shiftLines(this.top, 1, false);
    else this.moveTo(this.x, this.y + 1);
    this.wrapPending = false;
  }

  reverseLineFeed() {
    if (this.y === this.top) this.shiftLines(this.top, 1, true);
    else this.moveTo(this.x, this.y - 1);
  }

  tab() {
    let x = this.x + 1;
    while (x < this.columns - 1 && !this.tabs.has(x)) x += 1;
    this.moveTo(x, this.y);
  }

  /** Insert or delete lines at `from`, within the scroll region. @param {number} from @param {number} count @param {boolean} down */
  shiftLines(from, count, down) {
    if (from < this.top || from > this.bottom) return;
    for (let n = Math.min(count, this.bottom - from + 1); n > 0; n -= 1) {
      if (down) {
        this.lines.splice(this.bottom, 1);
        this.lines.splice(from, 0, this.blankLine());
      } else {
        const [gone] = this.lines.splice(from, 1);
        if (from === 0 && this.top === 0 && !this.mainLines) this.keep(gone);
        this.lines.splice(this.bottom, 0, this.blankLine());
      }
    }
    this.wrapPending = false;
  }

  /** Move a line to the scrollback. @param {Line} line */
  keep(line) {
    this.scrollback.push(line);
    if (this.scrollback.length > SCROLLBACK) {
      this.scrollback.shift();
      this.dropped += 1;
    }
  }

  /** @param {number} count */
  deleteCells(count) {
    const line = this.lines[this.y];
    line.cells.splice(this.x, count);
    this.fillLine(line);
  }

  /** @param {number} count */
  insertCells(count) {
    const line = this.lines[this.y];
    const blanks = Array.from({ length: Math.min(count, this.columns - this.x) }, () => this.blank());
    line.cells.splice(this.x, 0, ...blanks);
    line.cells.length = Math.min(line.cells.length, this.columns);
    this.touch(line);
  }

  /** @param {number} y @param {number} from @param {number} to */
  erase(y, from, to) {
    const line = this.lines[y];
    for (let x = from; x < Math.min(to, this.columns); x += 1) this.put(line, x, this.blank());
  }

  /** @param {number} kind */
  eraseLine(kind) {
    this.erase(this.y, kind === 0 ? this.x : 0, kind === 1 ? this.x + 1 : this.columns);
    this.wrapPending = false;
  }

  /** @param {number} kind */
  eraseScreen(kind) {
    if (kind === 3) {
      this.dropped += this.scrollback.length;
      this.scrollback = [];
      return;
    }
    for (let y = kind === 0 ? this.y + 1 : 0; y < (kind === 1 ? this.y : this.rows); y += 1) this.erase(y, 0, this.columns);
    if (kind !== 2) this.eraseLine(kind);
  }

  saveCursor() {
    this.saved = { x: this.x, y: this.y, style: this.style, drawing: this.drawing };
  }

  restoreCursor() {
    this.style = this.saved.style;
    this.drawing = this.saved.drawing;
    this.moveTo(this.saved.x, this.saved.y);
  }

  /** @returns {Cell} */
  blank() {
    return { text: " ", style: this.style.bg ? Object.freeze({ ...PLAIN, bg: this.style.bg }) : PLAIN };
  }

  /** @returns {Line} */
  blankLine() {
    /** @type {Line} */
    const line = { cells: [], version: 0 };
    this.fillLine(line);
    return line;
  }

  /** @param {number} count */
  blankLines(count) {
    return Array.from({ length: count }, () => this.blankLine());
  }

  /** @param {Line} line */
  fillLine(line) {
    while (line.cells.length < this.columns) line.cells.push(this.blank());
    this.touch(line);
  }

  /** @param {Line} line */
  touch(line) {
    this.versions += 1;
    line.version = this.versions;
  }
}

/** @param {Line} line */
function isBlank(line) {
  return line.cells.every((cell) => cell.text === " ");
}

/** A colour of 256 or of all, and how many codes it takes. @param {number[]} codes @returns {[string, number]} */
function extendedColour([kind, ...codes]) {
  if (kind === 5) return [indexed(codes[0] ?? 0), 2];
  if (kind === 2) return [rgb(codes.slice(0, 3)), 4];
  return ["", 0];
}

/** @param {number} index */
function indexed(index) {
  if (index < 16) return String(Math.max(0, index));
  if (index > 255) return "";
  if (index >= 232) return rgb(Array(3).fill(8 + (index - 232) * 10));
  const step = (/** @type {number} */ value) => (value ? 55 + value * 40 : 0);
  const value = index - 16;
  return rgb([step(Math.floor(value / 36)), step(Math.floor(value / 6) % 6), step(value % 6)]);
}

/** @param {number[]} parts */
function rgb(parts) {
  return `#${[0, 1, 2].map((n) => Math.min(255, Math.max(0, parts[n] ?? 0)).toString(16).padStart(2, "0")).join("")}`;
}

/**
 * What a key sends. Null for keys that the browser keeps or that type text.
 * @param {{key: string, ctrlKey: boolean, altKey: boolean, metaKey: boolean, shiftKey: boolean}} event @param {boolean} application
 */
export function keySequence(event, application) {
  const { key, ctrlKey, altKey, metaKey, shiftKey } = event;
  if (metaKey) return null;
  const modifier = 1 + Number(shiftKey) + 2 * Number(altKey) + 4 * Number(ctrlKey);
  const arrow = { ArrowUp: "A", ArrowDown: "B", ArrowRight: "C", ArrowLeft: "D", Home: "H", End: "F" }[key];
  if (arrow) return modifier > 1 ? `\x1b[1;${modifier}${arrow}` : `\x1b${application ? "O" : "["}${arrow}`;
  const tilde = { Insert: 2, Delete: 3, PageUp: 5, PageDown: 6, F5: 15, F6: 17, F7: 18, F8: 19, F9: 20, F10: 21, F11: 23, F12: 24 }[key];
  if (tilde) return modifier > 1 ? `\x1b[${tilde};${modifier}~` : `\x1b[${tilde}~`;
  const start = { F1: "P", F2: "Q", F3: "R", F4: "S" }[key];
  if (start) return `\x1bO${start}`;
  const escape = altKey ? "\x1b" : "";
  if (key === "Enter") return `${escape}\r`;
  if (key === "Backspace") return `${escape}${ctrlKey ? "\b" : "\x7f"}`;
  if (key === "Escape") return "\x1b";
  if (key === "Tab") return shiftKey ? null : "\t";
  if (key.length !== 1) return null;
  if (ctrlKey && !shiftKey) {
    const letter = key.toLowerCase();
    if (/[a-z]/.test(letter)) return `${escape}${String.fromCharCode(letter.charCodeAt(0) - 96)}`;
    const other = { "@": "\0", " ": "\0", "[": "\x1b", "\\": "\x1c", "]": "\x1d", "^": "\x1e", _: "\x1f" }[key];
    return other ?? null;
  }
  return altKey && !ctrlKey ? `\x1b${key}` : null;
}
