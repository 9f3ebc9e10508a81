// Search in pages opened from the disk. Browsers refuse a Worker there, so its script runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.documentElement.append(this.frame);
      this.frame.contentWindow.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = this.frame.contentDocument.createElement("script");
      script.src = url;
      this.started = new Promise((resolve) => (script.onload = resolve));
      this.frame.contentDocument.head.append(script);
    }

    postMessage(data) {
      this.started.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
