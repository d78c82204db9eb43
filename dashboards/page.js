"use strict";
// A button beside each display filter; without a script the filter is there to select.
for (const cell of document.querySelectorAll(".filter code")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "copy";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(cell.textContent);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(cell);
      button.textContent = "selected";
    }
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
  cell.before(button);
}
