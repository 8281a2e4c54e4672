(() => {
  "use strict";
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // Scheme: what the system says, or one of the two.
  const root = document.documentElement, button = document.getElementById("scheme");
  const schemes = ["auto", "light", "dark"];
  const show = () => { button.textContent = "Scheme: " + (root.dataset.scheme || "auto"); };
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.scheme = schemes[(schemes.indexOf(root.dataset.scheme || "auto") + 1) % schemes.length];
    try { localStorage.setItem("kernelweld-scheme", root.dataset.scheme); } catch { /* a file may have no storage */ }
    show();
  });
  show();

  // A strip of launches is one stop of the Tab key; arrows move inside it.
  for (const strip of all(".strip")) {
    const blocks = all(".block", strip);
    blocks.forEach((block, i) => { block.tabIndex = i ? -1 : 0; });
    strip.addEventListener("keydown", (event) => {
      const at = blocks.indexOf(document.activeElement), last = blocks.length - 1;
      const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: last }[event.key];
      if (at < 0 || to === undefined || !blocks[to]) return;
      event.preventDefault();
      blocks[at].tabIndex = -1;
      blocks[to].tabIndex = 0;
      blocks[to].focus();
    });
  }

  // A layer shows which others are of its kind.
  const cells = all(".cells a");
  const mark = (kind) => cells.forEach((cell) => cell.classList.toggle("same", cell.dataset.kind === kind));
  for (const cell of cells) {
    for (const name of ["mouseenter", "focus"]) cell.addEventListener(name, () => mark(cell.dataset.kind));
    for (const name of ["mouseleave", "blur"]) cell.addEventListener(name, () => mark(null));
  }

  // The filter: every word of it has to occur.
  const input = document.getElementById("filter"), output = document.getElementById("filtered");
  const items = all("[data-filter]").map((item) => [item, item.textContent.toLowerCase()]);
  if (!input || !items.length) return;
  input.parentElement.hidden = false;
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const [item, text] of items) {
      item.hidden = !words.every((word) => text.includes(word));
      count += !item.hidden;
    }
    output.textContent = words.length ? `${count} of ${items.length}` : "";
  });
})();
