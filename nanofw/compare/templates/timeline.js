"use strict";
for (const data of JSON.parse(document.getElementById("timelines").textContent)) {
  const figure = [...document.querySelectorAll("figure.timeline")].find(
    (one) => one.dataset.arm === data.arm);
  const canvas = figure.querySelector("canvas"), note = figure.querySelector("output");
  const lanes = 1 + Math.max(0, ...data.requests.map((request) => request[1]));
  const lane = Math.max(2, Math.min(10, 320 / lanes));
  const bands = { queue: [0, 60], kv: [70, 60], steps: [140, 26], requests: [176, lanes * lane] };
  const height = 176 + lanes * lane + 22;
  const end = Math.max(data.end, 1e-9);
  // Where not all requests are drawn, the view begins with those that are.
  const isWhole = data.requests.length === data.num_requests;
  let from = 0, to = isWhole ? end : data.requests.at(-1)[2] || end, width = 0;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const x = (time) => ((time - from) / (to - from)) * width;
  const time = (pixel) => from + (pixel / width) * (to - from);

  function area(context, column, most, [top, size], fill, label) {
    context.fillStyle = fill;
    context.beginPath();
    context.moveTo(0, top + size);
    let last = top + size;
    for (const point of data.counts) {
      const at = Math.max(-1, Math.min(width + 1, x(point[0])));
      context.lineTo(at, last);
      last = top + size * (1 - point[column] / Math.max(most, 1));
      context.lineTo(at, last);
    }
    context.lineTo(Math.min(width, x(end)), last);
    context.lineTo(Math.min(width, x(end)), top + size);
    context.fill();
    context.fillStyle = colour("--text");
    context.fillText(label, 4, top + 11);
  }

  function draw() {
    width = figure.clientWidth;
    const scale = window.devicePixelRatio || 1;
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.style.height = height + "px";
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    context.font = "11px system-ui, sans-serif";
    const waiting = Math.max(1, ...data.counts.map((point) => point[1]));
    area(context, 1, waiting, bands.queue, "#e69f0099", `requests that wait, up to ${waiting}`);
    const used = Math.max(1, ...data.counts.map((point) => point[2]));
    area(context, 2, used, bands.kv, "#009e7380", `KV blocks in use, up to ${used} of ${data.num_blocks}`);
    const box = (began, ended, top, size, fill) => {
      const left = Math.max(0, x(began)), right = Math.min(width, x(ended));
      if (right < 0 || left > width) return;
      context.fillStyle = fill;
      context.fillRect(left, top, Math.max(right - left, 0.6), size);
    };
    data.steps.forEach(([began, ended, , prefill], number) => {
      if (ended < from || began > to) return;
      const [top, size] = bands.steps;
      const half = (size - 2) / 2;
      box(began, ended, top + (number % 2) * half, half - 1, prefill ? "#d55e00" : "#56b4e9");
    });
    for (const [, row, arrival, ended, stays] of data.requests) {
      if (ended < from || arrival > to) continue;
      const top = bands.requests[0] + row * lane, size = Math.max(lane - 1, 1);
      box(arrival, ended, top, size, colour("--line"));
      for (const [began, prefilled, until, preempted] of stays) {
        box(began, prefilled, top, size, "#d55e00");
        box(prefilled, until, top, size, "#0072b2");
        if (preempted) box(until, until, top - 1, size + 2, colour("--worse"));
      }
    }
    context.fillStyle = colour("--soft");
    const digits = Math.max(0, Math.ceil(1 - Math.log10((to - from) / 4)));
    for (let i = 0; i <= 4; i++) {
      const text = `${time((i / 4) * width).toFixed(digits)} s`;
      context.textAlign = i === 0 ? "left" : i === 4 ? "right" : "center";
      context.fillText(text, (i / 4) * width, height - 5);
    }
    context.textAlign = "left";
  }

  function zoom(factor, at) {
    const span = Math.min(end, Math.max((to - from) * factor, 1e-4));
    const share = (at - from) / (to - from);
    from = Math.max(0, Math.min(end - span, at - share * span));
    to = from + span;
    draw();
  }

  function pan(seconds) {
    const span = to - from;
    from = Math.max(0, Math.min(end - span, from + seconds));
    to = from + span;
    draw();
  }

  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(event.deltaY < 0 ? 0.8 : 1.25, time(event.offsetX));
  }, { passive: false });
  let held = null;
  canvas.addEventListener("pointerdown", (event) => {
    held = event.offsetX;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => { held = null; });
  canvas.addEventListener("pointermove", (event) => {
    if (held !== null) {
      pan(time(held) - time(event.offsetX));
      held = event.offsetX;
      return;
    }
    const at = time(event.offsetX), row = Math.floor((event.offsetY - bands.requests[0]) / lane);
    const request = data.requests.find((one) => one[1] === row && one[2] <= at && at <= one[3]);
    const step = event.offsetY >= 140 && event.offsetY < 166
      && data.steps.findIndex((one) => one[0] <= at && at < one[1]);
    if (request) {
      const began = request[4].length ? request[4][0][0] : request[3];
      note.textContent = `${request[0]}: came at ${request[2]} s, waited ${(began - request[2]).toFixed(4)} s, `
        + `ended at ${request[3]} s, preempted ${request[4].filter((stay) => stay[3]).length} times`;
    } else if (step !== false && step >= 0) {
      const [began, ended, decodes, prefill] = data.steps[step];
      note.textContent = `step ${step}: ${((ended - began) * 1e3).toFixed(3)} ms, ${decodes} rows decode, `
        + `${prefill} prompt tokens`;
    } else {
      note.textContent = "";
    }
  });
  const [smaller, greater, whole] = figure.querySelectorAll("button");
  greater.addEventListener("click", () => zoom(0.5, (from + to) / 2));
  smaller.addEventListener("click", () => zoom(2, (from + to) / 2));
  whole.addEventListener("click", () => zoom(Infinity, from));
  new ResizeObserver(draw).observe(figure);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
}
