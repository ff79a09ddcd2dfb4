"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const element = (id) => document.getElementById(id);
const decimals = (value, n = 2) => value.toFixed(n);
const percent = (part, whole) => `${Math.round((100 * part) / whole)}%`;
const sum = (numbers) => numbers.reduce((total, n) => total + n, 0);
const seconds = (result) => result.prefill + result.decode;
const tau = (result) => sum(result.steps) / result.steps.length;

function make(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function fill(select, labels) {
  select.replaceChildren(...labels.map(([value, label]) => new Option(label, value)));
}

// ---- What is chosen ----

const ORDERS = {
  name: () => 0,
  highest: (a, b) => tau(b) - tau(a),
  lowest: (a, b) => tau(a) - tau(b),
  differing: (a, b) => (a.differs === null) - (b.differs === null),
};
const group = () => data.groups[element("group").value];
const run = () => group().runs[element("run").value];
const result = () => run().outputs.find((one) => one.id === element("prompt").value);
const plain = () => group().runs[run().baseline];

function chooseGroup() {
  fill(element("run"), group().runs.map((one, i) => [i, one.label]));
  element("run").value = Math.max(0, group().runs.findIndex((one, i) => one.baseline !== i));
  chooseRun();
}

function chooseRun() {
  const before = element("prompt").value;
  const sorted = [...run().outputs].sort(ORDERS[element("order").value]);
  fill(element("prompt"), sorted.map((one) => [one.id, promptLabel(one)]));
  if (sorted.some((one) => one.id === before)) element("prompt").value = before;
  element("left-out").hidden = !run().left_out;
  element("left-out").textContent = `${run().outputs.length} prompts are on this page, ${run().left_out} are left out.`;
  showPrompt();
}

function promptLabel(one) {
  return `${one.id} · tau ${decimals(tau(one))}${one.differs === null ? "" : " · differs"}`;
}

function move(by) {
  const select = element("prompt");
  const index = select.selectedIndex + by;
  if (index < 0 || index >= select.options.length) return;
  select.selectedIndex = index;
  showPrompt();
}

// ---- The outputs ----

class Panel {
  /** Shows one output in `box`; tokens arrive step by step, at the recorded mean pace. */
  constructor(box, shown) {
    this.result = shown;
    this.box = box.querySelector(".tokens");
    this.tokens = [];
    this.steps = [];
    this.stepOf = shown.steps.flatMap((length, step) => Array(length).fill(step));
    this.n = this.stepOf.length;
    this.ends = shown.steps.map((_, step) => this.stepOf.lastIndexOf(step) + 1);
    const turns = data.texts[shown.text];
    this.box.replaceChildren(...turns.map((turn, i) => this.turn(turn, turns.length > 1 ? i + 1 : 0)));
    if (this.tokens.length) this.tokens[0].tabIndex = 0;
  }

  turn(turn, number) {
    const made = make("div", "turn");
    if (number) made.dataset.number = `Turn ${number}`;
    if (turn.tokens === undefined) {
      made.append(turn.text);
    } else {
      turn.tokens.forEach((text, i) => this.token(made, text, i >= turn.answer));
    }
    return made;
  }

  token(turn, text, isBeyond) {
    const index = this.tokens.length;
    const step = this.stepOf[index];
    if (step === this.steps.length) turn.append((this.steps[step] = make("span", "step")));
    const made = make("span", `token ${this.source(index)}`, text);
    made.dataset.index = index;
    made.tabIndex = -1;
    made.classList.toggle("line", text.includes("\n"));
    made.classList.toggle("silent", text === "");
    made.classList.toggle("beyond", isBeyond);
    made.classList.toggle("different", index === this.result.differs);
    this.tokens.push(made);
    this.steps[step].append(made);
  }

  /** The letter of a token's source; records of older runs only tell guesses from the rest. */
  source(index) {
    const letter = this.result.sources?.[index] ?? (index === this.ends[this.stepOf[index]] - 1 ? "m" : "g");
    return letter in data.sources ? letter : "g";
  }

  counts() {
    const counts = {};
    for (let i = 0; i < this.n; i++) counts[this.source(i)] = (counts[this.source(i)] ?? 0) + 1;
    return counts;
  }

  describe(token) {
    const index = Number(token.dataset.index);
    const step = this.stepOf[index];
    const length = this.result.steps[step];
    const number = index - this.ends[step] + length + 1;
    const text = token.textContent;
    const said = [
      `Token ${index + 1} of ${this.n}${text && ` ${JSON.stringify(text)}`}: ${data.sources[this.source(index)]}.`,
      `Step ${step + 1} of ${this.ends.length}: accepted length ${length}, this is number ${number}.`,
    ];
    if (!text) said.push("It has no text of its own: a special token, or part of the character that follows.");
    if (token.classList.contains("beyond")) said.push("The answer has ended before it.");
    if (token.classList.contains("different")) said.push("Here the outputs part.");
    return said.join(" ");
  }

  /** Show what has arrived `time` seconds after the start. */
  at(time) {
    const pace = this.result.decode / this.ends.length;
    const nSteps = time < seconds(this.result) ? Math.floor((time - this.result.prefill) / pace) : this.ends.length;
    this.arrive(Math.max(0, nSteps));
    return this.ends[nSteps - 1] ?? 0;
  }

  arrive(nSteps) {
    this.steps.forEach((step, i) => {
      step.classList.toggle("coming", i >= nSteps);
      step.classList.toggle("latest", i === nSteps - 1 && nSteps < this.ends.length);
    });
  }
}

let panels = [];

function showPrompt() {
  stop();
  const shown = result();
  const theirs = plain() === run() ? undefined : plain().outputs.find((one) => one.id === shown.id);
  element("ours").querySelector("h3").textContent = run().label;
  element("theirs").hidden = theirs === undefined;
  panels = [new Panel(element("ours"), shown)];
  if (theirs) panels.push(new Panel(element("theirs"), { ...theirs, differs: shown.differs }));
  showFacts(shown, theirs);
  showLegend(panels[0]);
  showDifference(shown, theirs);
  element("detail").textContent = DETAIL;
  element("no-tokens").hidden = panels[0].tokens.length > 0;
  element("play-bar").hidden = panels[0].tokens.length === 0;
  element("previous").disabled = element("prompt").selectedIndex === 0;
  element("next").disabled = element("prompt").selectedIndex === element("prompt").options.length - 1;
  seek(duration());
}

function showFacts(shown, theirs) {
  const facts = [
    ["prompt", shown.id],
    ["group", shown.group],
    ["prompt tokens", shown.n_prompt + (shown.cut ? ` (${shown.cut} more were cut out)` : "")],
    ["new tokens", panels[0].n],
    ["steps", shown.steps.length],
    ["tau", decimals(tau(shown))],
    ["seconds", `${decimals(seconds(shown))} (prefill ${decimals(shown.prefill)})`],
    ["plain decoding's seconds", theirs && decimals(seconds(theirs))],
    ["output", theirs && verdict(shown)],
    ["ended by", shown.stop],
    ...Object.entries(shown.scores).map(([metric, value]) => [metric, decimals(value)]),
  ];
  const shownFacts = facts.filter(([, value]) => value !== undefined && value !== null);
  element("facts").replaceChildren(
    ...shownFacts.map(([name, value]) => {
      const made = make("div");
      made.append(make("dt", "", name), make("dd", "", value));
      return made;
    }),
  );
}

function verdict(shown) {
  if (shown.differs === null) return "identical to plain decoding's";
  return `differs from token ${shown.differs + 1} on${shown.verdict ? ` (${shown.verdict})` : ""}`;
}

function showLegend(panel) {
  const counts = panel.counts();
  const letters = Object.keys(data.sources).filter((letter) => letter !== "g" || counts.g);
  element("legend").replaceChildren(
    ...letters.map((letter) => {
      const entry = make("li");
      const share = `${counts[letter] ?? 0} (${percent(counts[letter] ?? 0, panel.n)})`;
      entry.append(make("span", `token ${letter}`, "abc"), ` ${data.sources[letter]}: `, make("b", "", share));
      return entry;
    }),
  );
}

// ---- Where two outputs part ----

function showDifference(shown, theirs) {
  element("difference").hidden = !theirs || shown.differs === null;
  if (element("difference").hidden) return;
  const texts = panels.map((panel) => pieces(panel));
  const at = panels[0].tokens.length ? shown.differs : texts[0].findIndex((piece, i) => piece !== texts[1][i]);
  const from = at < 0 ? Math.min(texts[0].length, texts[1].length) : at;
  element("difference-place").textContent = `token ${shown.differs + 1}`;
  [element("our-rest"), element("their-rest")].forEach((box, i) => {
    const common = texts[i].slice(Math.max(0, from - 16), from).join("");
    box.replaceChildren(make("span", "common", common), make("mark", "", texts[i].slice(from).join("") || "(end)"));
  });
}

function pieces(panel) {
  return panel.tokens.length ? panel.tokens.map((token) => token.textContent) : [...panel.box.textContent];
}

// ---- Looking at a token ----

const DETAIL = "Point at a token, or move through them with the arrow keys, to see where it came from.";

function inspect(event) {
  const token = event.target.closest?.(".tokens .token");
  const panel = token && panels.find((one) => one.box.contains(token));
  if (panel) element("detail").textContent = panel.describe(token);
}

function walk(event) {
  const panel = panels.find((one) => one.box.contains(event.target));
  const index = panel ? panel.tokens.indexOf(event.target) : -1;
  const targets = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: panel?.tokens.length - 1 };
  const target = index >= 0 && event.key in targets ? panel.tokens[targets[event.key]] : undefined;
  if (!target) return;
  event.preventDefault();
  event.target.tabIndex = -1;
  target.tabIndex = 0;
  target.focus();
}

// ---- Playing ----

let frame = 0;
const duration = () => Math.max(1e-6, ...panels.map((panel) => seconds(panel.result)));
const time = () => (element("time").value / element("time").max) * duration();

function seek(to) {
  element("time").value = (to / duration()) * element("time").max;
  const arrived = panels.map((panel) => panel.at(to));
  const names = [run().label, "plain decoding"];
  const states = panels.map((panel, i) => `${names[i]} ${arrived[i]} of ${panel.n} tokens`);
  element("clock").textContent = `${decimals(to)} s: ${states.join(", ")}`;
}

function play() {
  element("play").textContent = "Pause";
  let now = time() >= duration() ? 0 : time();
  let last = performance.now();
  const tick = (stamp) => {
    now = Math.min(duration(), now + (Math.max(0, stamp - last) / 1000) * Number(element("pace").value));
    last = stamp;
    seek(now);
    if (now < duration()) frame = requestAnimationFrame(tick);
    else stop();
  };
  frame = requestAnimationFrame(tick);
}

function stop() {
  cancelAnimationFrame(frame);
  frame = 0;
  element("play").textContent = "Play";
}

// ---- Start ----

if (data.groups.length) {
  fill(element("group"), data.groups.map((one, i) => [i, one.title]));
  element("group").addEventListener("change", chooseGroup);
  for (const id of ["run", "order"]) element(id).addEventListener("change", chooseRun);
  element("prompt").addEventListener("change", showPrompt);
  element("previous").addEventListener("click", () => move(-1));
  element("next").addEventListener("click", () => move(1));
  element("play").addEventListener("click", () => (frame ? stop() : play()));
  element("time").addEventListener("input", () => {
    stop();
    seek(time());
  });
  for (const kind of ["pointerover", "focusin", "click"]) element("panels").addEventListener(kind, inspect);
  element("panels").addEventListener("keydown", walk);
  element("browser").hidden = false;
  chooseGroup();
}
