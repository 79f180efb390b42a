// Files of the message that is written: text goes in as text, images where a model sees. By button, paste or drop.

import { el, icon } from "./dom.js";

const IMAGES = new Set(["image/png", "image/jpeg", "image/webp", "image/gif"]);
const LONGEST_SIDE = 1568; // pixels: models see no more of an image
const SHARE = 0.6; // of a request that one image may take before it is made smaller

/** The files beside the composer. Tells "change", and "problem" (detail: what to say). */
export class Attachments extends EventTarget {
  #list;
  #bytes;
  #sees;
  files = [];

  /** `sees()` says whether the models that are asked see images. */
  constructor({ list, button, input, area, target, bytes, sees }) {
    super();
    this.#list = list;
    this.#bytes = bytes;
    this.#sees = sees;
    button.addEventListener("click", () => input.click());
    input.addEventListener("change", async () => {
      await this.take(input.files);
      input.value = "";
      area.focus();
    });
    area.addEventListener("paste", (event) => {
      if (!event.clipboardData.files.length) return;
      event.preventDefault();
      this.take(event.clipboardData.files);
    });
    target.addEventListener("dragover", (event) => {
      if (!event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();
      target.classList.add("dropping");
    });
    for (const name of ["dragleave", "drop"]) target.addEventListener(name, (event) => {
      if (name === "drop" || !target.contains(event.relatedTarget)) target.classList.remove("dropping");
    });
    target.addEventListener("drop", (event) => {
      if (!event.dataTransfer.files.length) return;
      event.preventDefault();
      this.take(event.dataTransfer.files);
    });
  }

  /** Have exactly these. */
  set(files) {
    this.files = files;
    this.#show();
  }

  /** Add files, each as far as it can be read and there is room. */
  async take(files) {
    for (const file of [...files]) {
      try {
        const one = file.type.startsWith("image/") ? await this.#image(file) : await this.#text(file);
        this.files = [...this.files, one];
      } catch (error) {
        this.dispatchEvent(new CustomEvent("problem", { detail: error.message }));
      }
    }
    this.#show();
    this.dispatchEvent(new Event("change"));
  }

  async #text(file) {
    if (file.size > this.#left()) throw new Error(`“${file.name}” is too large: a message has at most ${megabytes(this.#bytes)}, its conversation included.`);
    const bytes = await file.arrayBuffer();
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
      if (text.includes("\0")) throw new Error();
      return { name: file.name || "pasted.txt", text };
    } catch {
      throw new Error(`“${file.name}” is neither text nor an image: nothing here can read it.`);
    }
  }

  async #image(file) {
    if (!this.#sees()) throw new Error(`“${file.name}” is an image, and the model that is picked sees none: pick one whose card says “sees images”.`);
    const most = Math.min(this.#left(), this.#bytes * SHARE) * 0.74; // base64 takes a third more
    const whole = IMAGES.has(file.type) && file.size <= most ? file : await smaller(file);
    if (whole.size > most) throw new Error(`“${file.name}” is too large: a message has at most ${megabytes(this.#bytes)}, its conversation included.`);
    return { name: file.name || "pasted image", image: await dataOf(whole) };
  }

  /** Bytes that the other files leave of a message. */
  #left() {
    return this.#bytes - this.files.reduce((sum, { text, image }) => sum + (text ?? image).length, 0);
  }

  #show() {
    this.#list.hidden = !this.files.length;
    this.#list.replaceChildren(...this.files.map((file) => {
      const remove = el("button", { type: "button", class: "tool", title: `Remove ${file.name}`, "aria-label": `Remove ${file.name}` }, icon("close"));
      remove.addEventListener("click", () => {
        this.files = this.files.filter((one) => one !== file);
        this.#show();
        this.dispatchEvent(new Event("change"));
      });
      return el("li", {}, ...shown(file), remove);
    }));
  }
}

/** The elements that stand for a file. */
export function shown({ name, image }) {
  return [image ? el("img", { src: image, alt: "", class: "thumb" }) : icon("file"), el("span", { class: "label", title: name }, name)];
}

function megabytes(bytes) {
  return `${+(bytes / 1024 / 1024).toFixed(1)} MB`;
}

/** The image, no larger than models see it. */
async function smaller(file) {
  const bitmap = await createImageBitmap(file).catch(() => { throw new Error(`“${file.name}” is no image that can be read here.`); });
  const scale = Math.min(1, LONGEST_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = el("canvas", { width: Math.max(Math.round(bitmap.width * scale), 1), height: Math.max(Math.round(bitmap.height * scale), 1) });
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.85));
}

function dataOf(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}
