// The search of the manual runs in a Worker, and a page opened as a file may not start one: here a frame runs the same
// script. `IFrameWorker` is the name that the theme's script looks for.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inner = frame.contentWindow;
      this.inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.inner.importScripts = (...urls) => Promise.all(urls.map((each) => this.run(each)));
      this.started = this.run(url);
    }
    run(url) {
      return new Promise((loaded, failed) => {
        const script = this.inner.document.createElement("script");
        script.src = url;
        script.onload = loaded;
        script.onerror = failed;
        this.inner.document.body.append(script);
      });
    }
    postMessage(data) {
      this.started.then(() => this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data })));
    }
    terminate() {
      this.inner.frameElement.remove();
    }
  };
}
