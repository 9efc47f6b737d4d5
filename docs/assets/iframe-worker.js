// A browser starts no Worker for a page that was opened as a file, and the search is one. So it runs in a hidden frame.
// (The theme would fetch a script for this from the network.)
class FrameWorker extends EventTarget {
  constructor(address) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    this.ready = new Promise(resolve => this.frame.addEventListener("load", resolve, { once: true }));
    document.body.appendChild(this.frame);
    const inside = this.frame.contentDocument;
    inside.open();
    inside.write(`<script>self.postMessage = data => parent.postMessage(data, "*");</script><script src="${address}"></script>`);
    inside.close();
    addEventListener("message", event => {
      if (event.source !== this.frame.contentWindow) return;
      const message = new MessageEvent("message", { data: event.data });
      this.dispatchEvent(message);
      if (this.onmessage) this.onmessage(message);
    });
  }

  postMessage(data) {
    this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
  }

  terminate() {
    this.frame.remove();
  }
}

if (location.protocol === "file:") window.Worker = FrameWorker;
