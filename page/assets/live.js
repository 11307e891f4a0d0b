// Looks again every two seconds while somebody sees the page, and swaps the parts that have changed. A part that has the focus, a selection
// or an open detail is left alone, so that nobody loses what they read.
"use strict";
const EVERY_MS = 2000;
const state = document.getElementById("live-state");
const policy = window.trustedTypes ? window.trustedTypes.createPolicy("muster", { createHTML: (text) => text }) : { createHTML: (text) => text };

function isInUse(part) {
  const selection = document.getSelection();
  return part.contains(document.activeElement) || part.querySelector("details[open]") !== null
    || (selection !== null && !selection.isCollapsed && part.contains(selection.anchorNode));
}

async function look() {
  if (document.hidden) {
    state.textContent = "Paused while nobody looks.";
    return;
  }
  try {
    const answer = await fetch(location.pathname + location.search, { cache: "no-store" });
    if (!answer.ok) throw new Error(String(answer.status));
    const fresh = new DOMParser().parseFromString(policy.createHTML(await answer.text()), "text/html");
    for (const part of document.querySelectorAll("[data-part]")) {
      const next = fresh.getElementById(part.id);
      if (next !== null && next.innerHTML !== part.innerHTML && !isInUse(part)) {
        part.replaceChildren(...next.childNodes);
      }
    }
    const time = document.querySelector("footer time");
    time.textContent = fresh.querySelector("footer time").textContent;
    state.textContent = "Live.";
  } catch (error) {
    state.textContent = `No answer (${error.message}); it is asked again.`;
  }
}

async function live() {
  await look();
  setTimeout(live, EVERY_MS);
}
setTimeout(live, EVERY_MS);
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
