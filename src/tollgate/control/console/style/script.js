// Progressive enhancement: copying, filters, the live tail, the playground, passkeys. Pages work without it.
"use strict";
(() => {
  const $ = (selector, from = document) => from.querySelector(selector);
  const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
  document.documentElement.classList.add("js");

  const element = (name, text, className) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  };
  const post = (url) => fetch(url, { method: "POST", headers: { Accept: "application/json" } });

  // Copy buttons.
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const label = $("span", button);
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      if (label) {
        label.textContent = "Copied";
        setTimeout(() => { label.textContent = "Copy"; }, 1500);
      }
    } catch {
      if (label) label.textContent = "Select and copy";
    }
  });

  // Filters apply when one is chosen.
  for (const form of $$("form[data-auto]")) {
    form.addEventListener("change", (event) => {
      if (event.target.matches("select, input[type=checkbox]")) form.requestSubmit();
    });
    form.addEventListener("submit", () => {
      // Omit empty fields from the URL.
      for (const field of $$("input, select", form)) if (!field.value) field.disabled = true;
    });
  }
  // Restore the form when the browser goes back.
  addEventListener("pageshow", () => { for (const field of $$("form[data-auto] [disabled]")) field.disabled = false; });

  // A form is sent once, however often its button is clicked. If the session has expired, the input is restored after // signing in again; passwords are never stored.
  const KEPT = "tollgate-form";
  const here = location.pathname + location.search;
  const typed = (form) => $$("input, select, textarea", form).filter((field) => field.name && !/password|hidden/.test(field.type));
  const nameOf = (form) => `${form.getAttribute("action")} ${$("[name=act][type=hidden]", form)?.value}`;
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (event.defaultPrevented || form.method !== "post" || $("body.outside")) return;
    if (form.dataset.sent) return event.preventDefault();
    form.dataset.sent = "1";
    const fields = typed(form).map((field) => [field.name, field.type === "checkbox" ? field.checked : field.value]);
    sessionStorage.setItem(KEPT, JSON.stringify({ here, form: nameOf(form), fields }));
  });
  addEventListener("pageshow", () => { for (const form of $$("[data-sent]")) delete form.dataset.sent; });
  if (!$("body.outside") || location.search.includes("done=")) {
    const kept = JSON.parse(sessionStorage.getItem(KEPT) || "null");
    sessionStorage.removeItem(KEPT);
    const form = kept?.here === here && /\/console\/sign-in/.test(document.referrer) && $$("form").find((each) => nameOf(each) === kept.form);
    if (form) {
      for (const field of typed(form)) {
        const value = kept.fields.find(([name]) => name === field.name)?.[1];
        if (field.type === "checkbox") field.checked = Boolean(value);
        else if (value !== undefined) field.value = value;
      }
      const words = element("p", "You were signed out. Your input is still here: send it again.", "notice");
      words.setAttribute("role", "status");
      form.before(words);
    }
  }

  // A menu closes when something else is clicked.
  document.addEventListener("click", (event) => {
    for (const menu of $$("details.switcher[open]")) if (!menu.contains(event.target)) menu.open = false;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") for (const menu of $$("details.switcher[open]")) menu.open = false;
  });

  // Check a domain while it is typed.
  for (const field of $$("[data-check]")) {
    const words = document.getElementById(`${field.id}-words`);
    let waiting = 0;
    let checks = 0;
    field.addEventListener("input", () => {
      clearTimeout(waiting);
      if (!words || field.value.trim().length < 3) return;
      waiting = setTimeout(async () => {
        const turn = ++checks;
        const answer = await fetch(`${field.dataset.check}?domain=${encodeURIComponent(field.value.trim())}`);
        if (!answer.ok || turn !== checks) return;
        const check = await answer.json();
        words.textContent = check.words;
        words.className = check.ok ? "hint up" : "hint down";
      }, 250);
    });
  }

  // Live tail: server-sent events; at most MAX_ROWS rows are kept.
  const live = $("#live");
  if (live) {
    const MAX_ROWS = 200;
    const lines = $("#lines");
    const words = $("#tail-words");
    const label = $("span", live);
    let source = null;
    const stop = () => {
      source?.close();
      source = null;
      live.setAttribute("aria-pressed", "false");
      label.textContent = "Live tail";
      words.textContent = "The tail was stopped.";
    };
    const start = () => {
      source = new EventSource(live.dataset.tail);
      live.setAttribute("aria-pressed", "true");
      label.textContent = "Stop";
      words.hidden = false;
      words.textContent = "Connecting…";
      // From here on no request is missed.
      source.addEventListener("ready", () => { words.textContent = "Waiting for requests…"; });
      source.onmessage = (event) => {
        const { lines: fresh, more } = JSON.parse(event.data);
        lines.insertAdjacentHTML("afterbegin", fresh.join(""));
        while (lines.rows.length > MAX_ROWS) lines.deleteRow(-1);
        $(".empty")?.remove();
        words.textContent = more ? "Live. Not all requests are shown." : "Live.";
      };
      source.onerror = () => {
        const ended = source.readyState === EventSource.CLOSED;
        if (ended) stop();
        words.textContent = ended ? "The tail has ended: reload the page." : "Reconnecting…";
      };
    };
    live.addEventListener("click", () => (source ? stop() : start()));
    addEventListener("pagehide", () => source?.close());
  }

  // The first-call guide completes when the call has arrived.
  const guide = $("#guide");
  if (guide) {
    let tries = 0;
    const look = async () => {
      if (document.hidden || ++tries > 400) return;
      const answer = await fetch(guide.dataset.called).catch(() => null);
      if (!answer?.ok || !(await answer.json()).called) return;
      clearInterval(timer);
      for (const step of $$(".steps > li", guide)) step.classList.add("done");
      guide.classList.add("proud");
      $("#guide-words").textContent = "The first request has arrived.";
    };
    const timer = setInterval(look, 2000);
  }

  // Playground: the browser calls the gateway itself.
  const play = $("form.playground");
  if (play) {
    const result = $("#result");
    let token = null;
    const tokenOf = async () => {
      const own = $("#own").value.trim();
      if (own) return own;
      if (token && token.expires_at * 1000 > Date.now() + 5000) return token.secret;
      const answer = await post(play.dataset.token);
      if (!answer.ok) throw new Error("No token could be created for the playground: you may not create tokens.");
      token = await answer.json();
      return token.secret;
    };
    const show = (rows, body) => {
      result.replaceChildren();
      const list = element("dl");
      for (const [name, value] of rows) if (value) list.append(element("dt", name), element("dd", value));
      const text = element("pre", body);
      text.tabIndex = 0;
      result.append(list, text);
    };
    play.addEventListener("submit", async (event) => {
      event.preventDefault();
      let params;
      try {
        params = JSON.parse($("#params").value || "[]");
      } catch (error) {
        show([["Problem", "The parameters are not JSON."]], String(error.message));
        return;
      }
      result.replaceChildren(element("span", undefined, "skeleton"));
      try {
        const secret = await tokenOf();
        const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method: $("#method").value.trim(), params });
        const started = performance.now();
        const answer = await fetch(play.dataset.url.replace(/^https?:\/\/[^/]+/, ""), {
          method: "POST",
          headers: { "Content-Type": "application/json", Authorization: `Bearer ${secret}` },
          body,
        });
        const text = await answer.text();
        const took = performance.now() - started;
        let pretty = text;
        try { pretty = JSON.stringify(JSON.parse(text), null, 2); } catch { /* shown as it is */ }
        show([
          ["Status", String(answer.status)],
          ["Duration", `${took.toFixed(1)} ms, measured in this browser`],
          ["Upstream", answer.headers.get("X-Tollgate-Upstream")],
          ["Cache", answer.headers.get("X-Tollgate-Cache")],
          ["Request id", answer.headers.get("X-Request-Id")],
        ], pretty);
      } catch (error) {
        show([["Problem", "The call could not be made."]], String(error.message));
      }
    });
  }

  // Passkeys (WebAuthn).
  const bytes = (text) => Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (letter) => letter.charCodeAt(0));
  const text64 = (buffer) => btoa(String.fromCharCode(...new Uint8Array(buffer))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
  const send = (action, fields) => {
    const form = element("form");
    form.method = "post";
    form.action = action;
    for (const [name, value] of Object.entries(fields)) {
      const field = element("input");
      field.type = "hidden";
      field.name = name;
      field.value = value;
      form.append(field);
    }
    document.body.append(form);
    form.submit();
  };
  const credentialOf = (made) => {
    const response = {};
    for (const name of ["clientDataJSON", "attestationObject", "authenticatorData", "signature", "userHandle"]) {
      if (made.response[name]) response[name] = text64(made.response[name]);
    }
    return JSON.stringify({ id: made.id, rawId: text64(made.rawId), type: made.type, clientExtensionResults: {}, response });
  };
  const showFault = (button, text) => {
    const fault = element("p", text, "fault");
    fault.setAttribute("role", "alert");
    button.parentElement.querySelector(".fault")?.remove();
    button.after(fault);
  };
  for (const button of $$("[data-passkey]")) {
    if (!window.PublicKeyCredential) { button.hidden = true; continue; }
    button.addEventListener("click", async () => {
      const adds = button.dataset.passkey === "add";
      try {
        const answer = await post(adds ? "/console/account/passkeys/options" : "/console/sign-in/options");
        if (answer.status === 403) throw new Error("This session is older than 15 minutes: sign out and in again, then add it.");
        if (!answer.ok) throw new Error("The service did not answer: reload the page.");
        const { ticket, options } = await answer.json();
        options.challenge = bytes(options.challenge);
        if (adds) {
          options.user.id = bytes(options.user.id);
          for (const each of options.excludeCredentials || []) each.id = bytes(each.id);
          const made = await navigator.credentials.create({ publicKey: options });
          send("/console/account/passkeys", { ticket, credential: credentialOf(made) });
        } else {
          for (const each of options.allowCredentials || []) each.id = bytes(each.id);
          const made = await navigator.credentials.get({ publicKey: options });
          send("/console/sign-in/passkey", { ticket, credential: credentialOf(made), next: button.dataset.next || "" });
        }
      } catch (error) {
        const cancelled = error.name === "NotAllowedError";
        const named = error.name === "SecurityError";
        showFault(button, named ? "Passkeys need a host name: open the console by its host name, or as localhost." : cancelled ? "It was cancelled." : String(error.message));
      }
    });
  }
})();
