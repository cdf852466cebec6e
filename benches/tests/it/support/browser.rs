//! A browser in which the live page is tested. With `IBSM_SCREENSHOTS` set, screenshots are kept in
//! that directory.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use benches::sandbox::{PATIENCE, Program, Sandbox, free_address};
use fantoccini::wd::WebDriverCompatibleCommand;
use fantoccini::{Client, ClientBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use url::Url;

/// A browser, and its driver.
pub(crate) struct Browser {
    pub(crate) client: Client,
    _driver: Program,
}

/// A command of Chromium beyond the WebDriver standard.
#[derive(Debug)]
struct Vendor {
    path: &'static str,
    body: Value,
}

impl WebDriverCompatibleCommand for Vendor {
    fn endpoint(&self, base: &Url, session: Option<&str>) -> Result<Url, url::ParseError> {
        base.join(&format!("session/{}/{}", session.unwrap_or_default(), self.path))
    }

    fn method_and_body(&self, _: &Url) -> (http::Method, Option<String>) {
        (http::Method::POST, Some(self.body.to_string()))
    }
}

impl Browser {
    pub(crate) async fn start(sandbox: &Sandbox) -> Self {
        let port = free_address().port();
        let driver = sandbox.program("chromedriver", &["chromedriver", &format!("--port={port}")]);
        driver.wait_for("started successfully");
        let profile = sandbox.path("profile");
        let arguments = json!([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--window-size=1280,900",
            format!("--user-data-dir={}", profile.display()),
        ]);
        let capabilities = json!({
            "goog:chromeOptions": {
                "args": arguments,
                "perfLoggingPrefs": { "enableNetwork": true },
            },
            "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
        });
        let Value::Object(capabilities) = capabilities else { unreachable!("it is an object") };
        let client = ClientBuilder::new(HttpConnector::new())
            .capabilities(capabilities)
            .connect(&format!("http://127.0.0.1:{port}"))
            .await
            .expect("the browser starts");
        Self { client, _driver: driver }
    }

    pub(crate) async fn devtools(&self, command: &'static str, params: Value) -> Value {
        let body = json!({ "cmd": command, "params": params });
        let command = Vendor { path: "goog/cdp/execute", body };
        self.client.issue_cmd(command).await.expect("the browser obeys")
    }

    /// The new lines of a log.
    pub(crate) async fn log(&self, kind: &'static str) -> Vec<Value> {
        let command = Vendor { path: "se/log", body: json!({ "type": kind }) };
        let entries = self.client.issue_cmd(command).await.expect("a log");
        entries.as_array().expect("entries").clone()
    }

    /// The result of a script.
    pub(crate) async fn eval(&self, script: &str) -> Value {
        let script = format!("return ({script})");
        self.client.execute(&script, vec![]).await.expect("the script runs")
    }

    /// Waits until a script returns a true value, and returns that.
    pub(crate) async fn until(&self, script: &str) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let value = self.eval(script).await;
            if !matches!(value, Value::Null | Value::Bool(false)) {
                return value;
            }
            assert!(Instant::now() < deadline, "never true: {script}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// A document of the API, as the page itself would get it.
    pub(crate) async fn api(&self, path: &str) -> Value {
        let script =
            "const done = arguments[1]; fetch(arguments[0]).then((a) => a.json()).then(done)";
        let got = self.client.execute_async(script, vec![json!(path)]).await;
        got.expect("the API answers")
    }

    /// The same for a path that is made.
    pub(crate) async fn api_owned(&self, path: String) -> Value {
        self.api(&path).await
    }

    pub(crate) async fn theme(&self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.devtools("Emulation.setEmulatedMedia", json!({ "features": features })).await;
    }

    pub(crate) async fn size(&self, width: u32, height: u32) {
        let metrics = json!({
            "width": width,
            "height": height,
            "deviceScaleFactor": 1,
            "mobile": width < 600,
        });
        self.devtools("Emulation.setDeviceMetricsOverride", metrics).await;
    }

    /// Shows a view, and waits until it is visible.
    pub(crate) async fn view(&self, name: &str) {
        self.eval(&format!("location.hash = '#/{name}'")).await;
        self.until(&format!("document.body.dataset.view === '{name}'")).await;
    }

    /// Saves a screenshot, if screenshots are enabled.
    pub(crate) async fn picture(&self, name: &str) {
        let Some(directory) = std::env::var_os("IBSM_SCREENSHOTS").map(PathBuf::from) else {
            return;
        };
        std::fs::create_dir_all(&directory).expect("the directory can be made");
        let png = self.client.screenshot().await.expect("a picture");
        std::fs::write(directory.join(format!("{name}.png")), png).expect("it can be written");
    }

    /// Checks that nothing overflows the page to the right.
    pub(crate) async fn assert_fits(&self, what: &str) {
        let wide = self.eval("document.documentElement.scrollWidth - innerWidth").await;
        assert!(wide.as_i64().unwrap() <= 0, "{what} is {wide} pixels too wide");
    }

    /// Checks that all requests went to `origin`, without errors.
    pub(crate) async fn assert_clean(&self, origin: &str) {
        let errors = self.log("browser").await;
        let errors: Vec<_> = errors.iter().filter(|entry| entry["level"] == "SEVERE").collect();
        assert!(errors.is_empty(), "{errors:?}");
        let mut requests = 0;
        for entry in self.log("performance").await {
            let message = entry["message"].as_str().expect("text");
            let message: Value = serde_json::from_str(message).expect("JSON");
            if message["message"]["method"] == "Network.requestWillBeSent" {
                let params = &message["message"]["params"];
                // The browser has its own pages, such as its start page.
                if !params["documentURL"].as_str().is_some_and(|url| url.starts_with(origin)) {
                    continue;
                }
                let url = params["request"]["url"].as_str().expect("a URL");
                let is_own = url.starts_with(origin) || url.starts_with("data:");
                assert!(is_own, "request to another origin: {url}");
                requests += 1;
            }
        }
        assert!(requests > 8, "the page and its parts");
    }
}
