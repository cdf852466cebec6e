//! The live page in a browser, on a small subnet of real programs. With `IBSM_SCREENSHOTS` set,
//! screenshots are kept in that directory.

use std::time::{Duration, Instant};

use benches::sandbox::{PATIENCE, Program, Sandbox, can_interoperate_with, free_address};
use fantoccini::Locator;
use serde_json::json;

use crate::support::browser::Browser;

/// A host of the fabric to search for.
const HOST: &str = "node00012 HCA-1";

/// A fat tree of 16 hosts, an SM with its page, two responders.
struct Subnet {
    sandbox: Sandbox,
    page: String,
    url: String,
    sm: Option<Program>,
    responders: Vec<Program>,
    /// The address of each responder.
    targets: Vec<String>,
    _fabric: Program,
}

impl Subnet {
    fn new() -> Self {
        let sandbox = Sandbox::new("web-page");
        let net = sandbox.fat_tree(8, 16);
        let fabric = sandbox.ibfabric(&net);
        let (publish, http) = (free_address().to_string(), free_address().to_string());
        let state = sandbox.path("state");
        let mut args = vec!["--transport", "ibsim", "--socket", sandbox.socket()];
        args.extend(["--node", "node00001 HCA-1", "--publish", &publish, "--http", &http]);
        args.extend(["--state-dir", state.to_str().expect("UTF-8")]);
        let sm = sandbox.ours("ibsm", "ibsm", &args);
        sm.wait_for("SUBNET UP");
        let mut subnet = Self {
            page: format!("http://{http}"),
            url: format!("http://{publish}"),
            sm: Some(sm),
            responders: Vec::new(),
            targets: Vec::new(),
            _fabric: fabric,
            sandbox,
        };
        for name in ["r1", "r2"] {
            let listen = free_address().to_string();
            let args =
                ["--sm", &subnet.url, "--name", name, "--transport", "udp", "--listen", &listen];
            let responder = subnet.sandbox.ours("ibsa", name, &args);
            responder.wait_for("serving generation");
            subnet.responders.push(responder);
            subnet.targets.push(listen);
        }
        subnet
    }

    /// Sends path queries to both responders until the programs are dropped.
    fn storm(&self) -> Vec<Program> {
        let storm = |(at, target): (usize, &String)| {
            let args = ["--transport", "udp", "--target", target, "--duration", "600"];
            let args = [&args[..], &["--concurrency", "4", "--sm", &self.url]].concat();
            self.sandbox.ours("ibstorm", &format!("ibstorm-{at}"), &args)
        };
        self.targets.iter().enumerate().map(storm).collect()
    }
}

#[test]
fn the_page_shows_what_is_going_on() {
    if !can_interoperate_with("chromium") || !can_interoperate_with("chromedriver") {
        return;
    }
    let mut subnet = Subnet::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let browser = Browser::start(&subnet.sandbox).await;
        watch(&browser, &mut subnet).await;
        browser.client.clone().close().await.expect("the browser ends");
    });
}

async fn watch(browser: &Browser, subnet: &mut Subnet) {
    browser.size(1280, 900).await;
    browser.theme("light").await;
    browser.client.goto(&subnet.page).await.expect("the page loads");
    browser.until("document.body.dataset.connection === 'live'").await;
    let states = "[...document.querySelectorAll('#responders tbody tr')]\
                  .map((row) => row.cells[0].innerText + ' ' + row.cells[1].innerText).join()";
    browser.until(&format!("{states} === 'r1 current,r2 current'")).await;
    assert_eq!(browser.eval("document.getElementById('subnet').innerText").await, "Subnet up");

    numbers_are_those_of_the_api(browser, subnet).await;
    looks_follow_the_theme_and_the_width(browser).await;
    a_host_is_found_and_shown(browser).await;
    a_host_that_is_lost_keeps_its_place(browser, subnet).await;
    browser.assert_clean(&subnet.page).await;

    subnet.responders.pop().expect("the second").kill();
    browser.view("overview").await;
    browser.until(&format!("{states} === 'r1 current,r2 down'")).await;
    browser
        .until("document.querySelector('#tile-responders .value').innerText.includes('1')")
        .await;
    browser.picture("responder-down").await;
    subnet.sm.take().expect("the SM").kill();
    browser.until("document.body.dataset.connection === 'lost'").await;
    browser.until("document.getElementById('connection').innerText.startsWith('Lost')").await;
    browser.picture("disconnected").await;
}

async fn numbers_are_those_of_the_api(browser: &Browser, subnet: &Subnet) {
    let rate = "document.querySelector('#tile-rate .value').innerText";
    browser.until(&format!("{rate}.startsWith('0')")).await;
    let storm = subnet.storm();
    // The tile shows the API's value of the same second.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let before = browser.api("/api/v1/status").await;
        let shown = browser.eval(rate).await;
        let after = browser.api("/api/v1/status").await;
        let reported = before["total"]["answers_per_s"].as_f64();
        let digits = |text: &str| -> String { text.chars().filter(char::is_ascii_digit).collect() };
        let shown = digits(shown.as_str().unwrap_or_default());
        if reported
            .is_some_and(|reported| reported > 100.0 && digits(&format!("{reported:.0}")) == shown)
            && before["tick"] == after["tick"]
        {
            break;
        }
        assert!(Instant::now() < deadline, "the page shows {shown}, the API {reported:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let talkers = browser.api("/api/v1/talkers").await;
    assert!(talkers.as_array().is_some_and(|talkers| !talkers.is_empty()), "{talkers}");
    // Rates change: the curve has several values by now, and gets more.
    let length = "fetch('/api/v1/series').then((a) => a.json())\
                  .then((s) => s.total.answers_per_s.filter((n) => n > 100).length >= 5)";
    let moved = format!("const done = arguments[0]; {length}.then(done)");
    while browser.client.execute_async(&moved, vec![]).await.expect("the API answers") != true {
        assert!(Instant::now() < deadline, "rates do not change");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    browser.picture("overview-light").await;
    browser.theme("dark").await;
    browser.picture("overview-dark").await;
    browser.theme("light").await;
    drop(storm);
    // Without load totals are constant: the table includes every answer.
    browser.until(&format!("{rate}.startsWith('0')")).await;
    let reported = browser.api("/api/v1/status").await;
    let path = &reported["types"][0];
    assert_eq!((&path["attribute"], &path["method"]), (&json!("PathRecord"), &json!("get")));
    let total = "document.querySelector('#types tbody tr').cells[5].innerText.replaceAll(',', '')";
    assert_eq!(browser.eval(total).await, path["total"].to_string());
}

async fn looks_follow_the_theme_and_the_width(browser: &Browser) {
    let ground = "getComputedStyle(document.body).backgroundColor";
    let light = browser.eval(ground).await;
    browser.theme("dark").await;
    assert_ne!(browser.eval(ground).await, light);
    for view in ["sweeps", "fabric", "overview"] {
        browser.view(view).await;
        browser.assert_fits(view).await;
        browser.size(390, 844).await;
        browser.assert_fits(&format!("{view} on a phone")).await;
        browser.picture(&format!("{view}-phone-dark")).await;
        browser.size(1280, 900).await;
        browser.picture(&format!("{view}-idle-dark")).await;
    }
    browser.theme("light").await;
}

async fn a_host_is_found_and_shown(browser: &Browser) {
    browser.view("fabric").await;
    browser.until("document.getElementById('map-empty').hidden").await;
    let zoom = "Number(document.querySelector('#map canvas').dataset.zoom)";
    assert_eq!(browser.until(&format!("{zoom} > 0 && {zoom}")).await, 1);
    browser.picture("fabric-light").await;
    let search = browser.client.find(Locator::Id("search")).await.expect("a search box");
    search.send_keys(&HOST.to_lowercase()).await.expect("it takes keys");
    browser.until("document.querySelectorAll('#found li[data-number]').length === 1").await;
    search.send_keys("\u{E007}").await.expect("it takes Enter");
    browser.until(&format!("document.querySelector('#detail h2')?.innerText === '{HOST}'")).await;
    browser.until(&format!("{zoom} > 1")).await;
    let guid = browser.eval("location.hash.split('/')[2]").await;
    let node = browser.api(&format!("/api/v1/nodes/{}", guid.as_str().expect("a GUID"))).await;
    assert_eq!((&node["name"], &node["kind"]), (&json!(HOST), &json!("host")));
    let shown = browser.eval("document.querySelector('#detail').innerText").await;
    let shown = shown.as_str().expect("text");
    assert!(shown.contains(&node["lid"].to_string()), "{shown}");
    assert!(shown.contains(node["ports"][0]["peer"]["name"].as_str().expect("a name")), "{shown}");
    assert!(node["ports"][0]["state"] == "Active", "{node}");
    tokio::time::sleep(Duration::from_millis(400)).await; // Let the pan animation end.
    browser.picture("fabric-host-light").await;
    // Searching for a LID finds the same host.
    browser.eval("location.hash = '#/fabric'").await;
    browser.until("document.getElementById('detail').hidden").await;
    search.clear().await.expect("it is emptied");
    search.send_keys(&format!("{}\u{E007}", node["lid"])).await.expect("it takes keys");
    browser.until(&format!("document.querySelector('#detail h2')?.innerText === '{HOST}'")).await;
}

async fn a_host_that_is_lost_keeps_its_place(browser: &Browser, subnet: &Subnet) {
    browser.eval("location.hash = '#/fabric'").await;
    browser.until("document.getElementById('detail').hidden").await;
    let before = browser.api("/api/v1/fabric").await;
    subnet.sandbox.control(&["node-down", HOST]);
    let missing = "document.querySelector('#map canvas').dataset.missing";
    browser.until(&format!("{missing} === '1'")).await;
    let map = browser.api("/api/v1/fabric").await;
    assert_eq!(
        (&map["hosts"]["name"], &map["width"]),
        (&before["hosts"]["name"], &before["width"])
    );
    browser.picture("fabric-missing-light").await;
    let search = browser.client.find(Locator::Id("search")).await.expect("a search box");
    search.clear().await.expect("it is emptied");
    search.send_keys(&format!("{}\u{E007}", HOST.to_lowercase())).await.expect("it takes keys");
    let kind = "document.querySelector('#detail dd')?.innerText";
    browser.until(&format!("{kind} === 'host, missing'")).await;
    // Its switch, by the link that is missing.
    browser.eval("document.querySelector('#detail td .link').click()").await;
    browser.until(&format!("{kind} === 'switch'")).await;
    browser.until("document.getElementById('detail').innerText.includes('Link missing')").await;
    tokio::time::sleep(Duration::from_millis(400)).await; // Let the pan animation end.
    browser.picture("fabric-missing-zoomed-light").await;
    subnet.sandbox.control(&["node-up", HOST]);
    browser.until(&format!("{missing} === '0'")).await;
}
