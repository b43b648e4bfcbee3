// Searches as files: download what is shown, open what was saved.

const STYLES = [
  "fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "opacity", "display",
  "font-size", "font-weight", "font-family", "text-anchor", "dominant-baseline", "paint-order",
];

function download(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = Object.assign(document.createElement("a"), { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

export function saveJson(name, search) {
  download(`${name}.json`, "application/json", JSON.stringify(search));
}

// A copy of a drawing that carries its style with it.
function standalone(picture, x, width, height) {
  const copy = picture.cloneNode(true);
  const from = [picture, ...picture.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((element, i) => {
    const style = getComputedStyle(element);
    for (const name of STYLES) to[i].style.setProperty(name, style.getPropertyValue(name));
  });
  for (const [name, value] of Object.entries({ x, y: 0, width, height })) copy.setAttribute(name, value);
  return copy;
}

// The scene and the tree as they are drawn now, side by side in one SVG.
export function savePicture(name, pane) {
  const hall = pane.querySelector(".scene svg"), tree = pane.querySelector(".tree svg");
  const side = hall ? 420 : 0, gap = hall ? 24 : 0;
  const width = Number(tree.getAttribute("width")), height = Number(tree.getAttribute("height"));
  const all = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const size = { width: side + gap + width, height: Math.max(side, height) };
  for (const [key, value] of Object.entries(size)) all.setAttribute(key, value);
  all.style.setProperty("background", getComputedStyle(pane).backgroundColor);
  if (hall) all.append(standalone(hall, 0, side, side));
  all.append(standalone(tree, side + gap, width, height));
  download(`${name}.svg`, "image/svg+xml", new XMLSerializer().serializeToString(all));
}

// What the server makes of a file: { state, search }.
export async function openFile(file) {
  const response = await fetch("api/document", { method: "POST", headers: { "Content-Type": "application/json" }, body: file });
  const reply = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  if (!response.ok) throw new Error(`${file.name}: ${reply.error}`);
  return reply;
}
