// Live updates of a page: a stream that pauses while the page is hidden, and reconnects.
//
//   const stream = dpledger.live.watch("/runs/x/stream", {
//     state: (told) => {},     // how things stand; after every new beginning
//     entry: (told) => {},     // something was recorded
//     incident: (told) => {},  // a new incident
//     late: (isLate) => {},    // whether the stream is interrupted
//   });
//   stream.stop();             // for good
//
//   dpledger.live.json(address, signal)  // data of this page; signs in again where that is needed
//   dpledger.live.text(address)          // the same for a part of the page
(function () {
  "use strict";
  const PATIENCE = 2000;
  const PATIENCE_MAX = 60000;
  const ERRORS_MAX = 3;

  function watch(address, heard) {
    let source = null;
    let timer = 0;
    let patience = PATIENCE;
    let errors = 0;
    let stopped = false;

    function parsed(handler) {
      return function (event) {
        errors = 0;
        patience = PATIENCE;
        if (heard.late) heard.late(false);
        if (handler) handler(JSON.parse(event.data));
      };
    }

    function open() {
      close();
      if (stopped || document.hidden) return;
      source = new EventSource(address);
      source.addEventListener("state", parsed(heard.state));
      source.addEventListener("entry", parsed(heard.entry));
      source.addEventListener("incident", parsed(heard.incident));
      source.addEventListener("error", failed);
    }

    function failed() {
      if (heard.late) heard.late(true);
      errors += 1;
      // A browser asks again by itself unless it was refused; neither it nor we should for ever.
      if (source.readyState !== EventSource.CLOSED && errors < ERRORS_MAX) return;
      close();
      timer = setTimeout(open, patience * (0.75 + 0.5 * Math.random()));
      patience = Math.min(PATIENCE_MAX, 2 * patience);
    }

    function close() {
      clearTimeout(timer);
      if (source) source.close();
      source = null;
    }

    function seen() {
      if (document.hidden) close();
      else if (!source) open();
    }

    document.addEventListener("visibilitychange", seen);
    addEventListener("pagehide", close);
    addEventListener("pageshow", seen);
    open();
    return {
      stop: function () {
        stopped = true;
        close();
        document.removeEventListener("visibilitychange", seen);
      },
    };
  }

  async function ask(address, signal) {
    const answer = await fetch(address, { signal: signal, headers: { "HX-Request": "true" } });
    if (answer.status === 401) {
      location.assign("/sign-in?next=" + encodeURIComponent(location.pathname + location.search));
      throw new Error("signed out");
    }
    if (answer.ok) return answer;
    const error = new Error("refused: " + answer.status);
    error.status = answer.status;
    error.after = 1000 * Number(answer.headers.get("retry-after") || 0);
    if ((answer.headers.get("content-type") || "").includes("json")) {
      error.told = (await answer.json()).detail;
    }
    throw error;
  }

  window.dpledger = window.dpledger || {};
  window.dpledger.live = {
    watch: watch,
    json: async (address, signal) => (await ask(address, signal)).json(),
    text: async (address, signal) => (await ask(address, signal)).text(),
  };
})();
