//! The map of the live page in a browser: the load of links, and the fabric of earlier times.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use benches::sandbox::{can_interoperate_with, free_address};
use serde_json::Value;

use crate::support::browser::Browser;
use crate::support::{Subnet, ibsmctl};

/// A host that sends, and one that is lost.
const BUSY: &str = "node00012 HCA-1";
const LOST: &str = "node00005 HCA-1";

#[test]
fn the_map_shows_load_and_earlier_times() {
    if !can_interoperate_with("chromium") || !can_interoperate_with("chromedriver") {
        return;
    }
    let subnet = Subnet::new("web-map");
    let settings = subnet.sandbox.path("ibsm.conf");
    // The history takes loads once a second: of readings as frequent it may miss one.
    std::fs::write(&settings, "perfmgr TRUE\nperfmgr_sweep_time_s 2\n").expect("it is written");
    let http = free_address().to_string();
    let sm = subnet.ibsm(&["-F", settings.to_str().expect("UTF-8"), "--http", &http]);
    sm.wait_for("SUBNET UP");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let browser = Browser::start(&subnet.sandbox).await;
        browser.size(1280, 900).await;
        browser.theme("light").await;
        browser.client.goto(&format!("http://{http}/#/fabric")).await.expect("the page loads");
        browser.until("document.body.dataset.connection === 'live'").await;
        browser.until("document.getElementById('map-empty').hidden").await;
        let loaded_ms = the_map_shows_load(&browser, &subnet).await;
        the_map_shows_an_earlier_time(&browser, &subnet).await;
        the_map_shows_an_earlier_load(&browser, loaded_ms).await;
        a_node_is_shown(&browser, &subnet).await;
        a_link_is_clicked(&browser, &subnet).await;
        a_link_of_a_host_is_clicked(&browser, &subnet).await;
        a_path_is_shown(&browser, &subnet).await;
        browser.assert_clean(&format!("http://{http}")).await;
        browser.client.clone().close().await.expect("the browser ends");
    });
}

/// The panel of a switch is updated in place; a port is opened.
async fn a_node_is_shown(browser: &Browser, subnet: &Subnet) {
    let map = browser.api("/api/v1/fabric").await;
    let host = map["hosts"]["name"].as_array().unwrap().iter().position(|name| name == BUSY);
    let leaf = map["hosts"]["leaf"][host.expect("it is there")].as_u64().unwrap() as usize;
    let guid = map["switches"]["guid"][leaf].as_str().unwrap();
    let node = browser.api_owned(format!("/api/v1/nodes/{guid}")).await;
    let ports = node["ports"].as_array().unwrap();
    let port = ports.iter().find(|port| port["peer"]["name"] == BUSY).expect("its port");
    let number = &port["number"];
    browser.eval(&format!("location.hash = '#/fabric/{guid}'")).await;
    let row = format!("document.querySelector('#detail tr[data-port=\"{number}\"]')");
    browser.until(&format!("{row}?.innerText.includes('{BUSY}')")).await;
    // Port 0 has the LID, and the P_Keys with the partitions' names.
    let (zero, below) = (
        "document.querySelector('#detail tr[data-port=\"0\"] button.open').click()",
        "document.querySelector('#detail tr[data-of=\"0\"]').innerText",
    );
    browser.eval(zero).await;
    let shown = browser.eval(below).await;
    let shown = shown.as_str().expect("text");
    let key = &ports[0]["pkeys"][0];
    for text in [&key["pkey"], &key["name"], &node["lid"].to_string().into()] {
        assert!(shown.contains(text.as_str().expect("text")), "{text} is not in {shown}");
    }
    browser.eval(zero).await;
    // Errors appear where the row is, without moving it.
    browser.eval(&format!("{row}.querySelector('button.open').click()")).await;
    browser.eval(&format!("window.kept = {row}, window.top0 = {row}.offsetTop, 0")).await;
    let columns = "[...document.querySelectorAll('#detail th')].map((th) => th.offsetLeft).join()";
    let places = browser.eval(columns).await;
    let name = node["name"].as_str().unwrap();
    subnet.control(&["count", name, &number.to_string(), "SymbolErrorCounter", "1234"]);
    browser.until(&format!("{row}.innerText.includes('1,234')")).await;
    let below = format!("document.querySelector('#detail tr[data-of=\"{number}\"]').innerText");
    browser.until(&format!("{below}.includes('symbol_err_cnt 1,234')")).await;
    let is_same = format!("window.kept === {row} && window.top0 === {row}.offsetTop");
    assert_eq!(browser.eval(&is_same).await, true);
    let panel = "document.querySelector('#detail')";
    browser.until(&format!("{panel}.querySelector('.faults').innerText.includes('1234')")).await;
    assert_eq!(browser.eval(&format!("window.kept === {row}")).await, true);
    browser.picture("fabric-node-light").await;
    browser.size(390, 844).await;
    browser.assert_fits("a node on a phone").await;
    browser.picture("fabric-node-phone-light").await;
    browser.size(1280, 900).await;
    // A port that goes down is so since then.
    let since = port["since_ms"].as_u64().expect("a time");
    subnet.control(&["link-down", name, &number.to_string()]);
    browser.until(&format!("{row}.innerText.includes('Link missing')")).await;
    assert_eq!(browser.eval(columns).await, places);
    let node = browser.api_owned(format!("/api/v1/nodes/{guid}")).await;
    let port = node["ports"].as_array().unwrap().iter().find(|port| port["number"] == *number);
    let port = port.expect("it is still there");
    assert!(port["since_ms"].as_u64() > Some(since) && port["since_is_exact"] == true, "{port}");
    subnet.control(&["link-up", name, &number.to_string()]);
    browser.until(&format!("{row}.innerText.includes('Active')")).await;
    assert_eq!(browser.eval(&format!("window.kept === {row}")).await, true);
    browser.eval("document.querySelector('#detail header button').click()").await;
}

/// A click on a line between two switches shows the links between them.
async fn a_link_is_clicked(browser: &Browser, subnet: &Subnet) {
    // Between the rows of switches: from left to right until there is a line.
    let click = "(() => {
        const canvas = document.querySelector('#map canvas');
        const { left, top, width, height } = canvas.getBoundingClientRect();
        for (let y = height * 0.2; y < height * 0.6; y += 7)
            for (let x = 0; x < width; x += 3) {
                const at = { clientX: left + x, clientY: top + y, pointerId: 1, bubbles: true };
                canvas.dispatchEvent(new PointerEvent('pointerdown', at));
                canvas.dispatchEvent(new PointerEvent('pointerup', at));
                if (/0x[0-9a-f]+-0x[0-9a-f]+$/.test(location.hash)) return location.hash;
            }
        return '';
    })()";
    let hash = browser.eval(click).await;
    let hash = hash.as_str().expect("text").to_owned();
    let ends = hash.strip_prefix("#/fabric/").expect("a line is clicked").split_once('-');
    let (near, far) = ends.expect("two GUIDs");
    let rows = "document.querySelectorAll('#detail tbody tr[data-port]').length";
    browser.until(&format!("{rows} > 0")).await;
    let node = browser.api_owned(format!("/api/v1/nodes/{near}")).await;
    let ports = node["ports"].as_array().expect("ports").clone();
    let shared: Vec<_> = ports.iter().filter(|port| port["peer"]["guid"] == far).collect();
    assert_eq!(browser.eval(rows).await, shared.len());
    browser.picture("fabric-links-light").await;
    // The state of a link, as it changes.
    let (name, port) = (node["name"].as_str().unwrap(), shared[0]["number"].to_string());
    let state = format!("document.querySelector('#detail tr[data-port=\"{port}\"]')?.innerText");
    assert!(browser.eval(&format!("{state}.includes('Active')")).await == true);
    subnet.control(&["link-down", name, &port]);
    browser.until(&format!("{state}?.includes('Link missing')")).await;
    subnet.control(&["link-up", name, &port]);
    browser.until(&format!("{state}?.includes('Active')")).await;
    // A line that is not drawn is not hit.
    let hit = "import('/lines.js').then(({ lineAt }) => {
        const frame = () => ({ px: (x) => x, py: (y) => y });
        const map = { frame, x: [0, 99], row: [0, 99], drawn: new Set([{ a: 0, b: 1 }]) };
        map.tie = () => undefined;
        const hits = () => lineAt(map, 50, 50) !== undefined;
        return hits() && (map.drawn.clear(), !hits());
    })";
    assert_eq!(browser.eval(hit).await, true);
    // Its ends are nodes.
    browser.eval("document.querySelector('#detail h2 button').click()").await;
    browser.until(&format!("location.hash === '#/fabric/{near}'")).await;
    browser.until("document.querySelector('#detail dl')?.innerText.includes('LID')").await;
    browser.eval("document.querySelector('#detail header button').click()").await;
}

/// A click on the line beside a host shows its link, with the counters of both ends.
async fn a_link_of_a_host_is_clicked(browser: &Browser, subnet: &Subnet) {
    let map = browser.api("/api/v1/fabric").await;
    let at = map["hosts"]["name"].as_array().unwrap().iter().position(|name| name == BUSY);
    let at = at.expect("it is there");
    let leaf = map["hosts"]["leaf"][at].as_u64().unwrap() as usize;
    let (host, leaf) = (&map["hosts"]["guid"][at], &map["switches"]["guid"][leaf]);
    let (host, leaf) = (host.as_str().unwrap(), leaf.as_str().unwrap());
    let canvas = "document.querySelector('#map canvas')";
    browser.eval("document.querySelector('#detail header button')?.click()").await;
    browser.eval(&format!("location.hash = '#/fabric/{host}'")).await;
    browser.until("document.querySelector('#detail dl')?.innerText.includes('LID')").await;
    // The host is in the middle, where it is large, once the view is at rest.
    let is_near = format!("{canvas}.dataset.still === 'true' && Number({canvas}.dataset.zoom) > 1");
    browser.until(&is_near).await;
    let click = format!(
        "(() => {{
        const {{ left, top, width }} = {canvas}.getBoundingClientRect();
        const y = top + 76 + ({canvas}.clientHeight - 76 - 64) / 2;
        for (let x = 0; x < width; x += 2) {{
            const at = {{ clientX: left + x, clientY: y, pointerId: 1, bubbles: true }};
            {canvas}.dispatchEvent(new PointerEvent('pointerdown', at));
            {canvas}.dispatchEvent(new PointerEvent('pointerup', at));
            if (location.hash === '#/fabric/{leaf}-{host}') return location.hash;
        }}
        return '';
    }})()"
    );
    assert_ne!(browser.eval(&click).await, "", "the line is clicked");
    let below = "document.querySelector('#detail tr.more')?.innerText";
    browser.until(&format!("{below}?.includes('{BUSY} can')")).await;
    let node = browser.api_owned(format!("/api/v1/nodes/{host}")).await;
    let can = node["ports"][0]["supported"].as_str().expect("what it supports").to_owned();
    assert!(browser.eval(&format!("{below}.includes('{can}')")).await == true, "{can}");
    subnet.control(&["count", BUSY, "1", "PortRcvErrors", "77"]);
    browser.until(&format!("{below}.includes('{BUSY} counts') && {below}.includes(' 77')")).await;
    browser.picture("fabric-host-link-light").await;
    browser.eval("document.querySelector('#detail header > button').click()").await;
}

/// The other end of a path is chosen after a node; without a responder the panel says why there is
/// none.
async fn a_path_is_shown(browser: &Browser, subnet: &Subnet) {
    let map = browser.api("/api/v1/fabric").await;
    let (names, guids) = (&map["hosts"]["name"], &map["hosts"]["guid"]);
    let guid = |name: &str| {
        let at = names.as_array().unwrap().iter().position(|host| host == name).expect(name);
        guids[at].as_str().unwrap().to_owned()
    };
    let (from, to) = (guid(LOST), guid(BUSY));
    let choose = async || {
        browser.eval(&format!("location.hash = '#/fabric/{from}'")).await;
        browser.until("document.querySelector('#detail button.path')").await;
        browser.eval("document.querySelector('#detail button.path').click()").await;
        browser.eval(&format!("location.hash = '#/fabric/{to}'")).await;
        browser.until(&format!("location.hash === '#/fabric/{from}..{to}'")).await;
    };
    let panel = "document.getElementById('detail').innerText";
    choose().await;
    browser.until(&format!("{panel}.includes('no responder is connected')")).await;
    let _ibsa = subnet.ibsa();
    let rows = "document.querySelectorAll('#detail tr[data-hop]').length";
    browser.until(&format!("{rows} > 0")).await;
    let path = browser.api_owned(format!("/api/v1/explain?from={from}&to={to}")).await;
    let hops = path["hops"].as_array().expect("hops");
    // The panel also has the node at the end; a line is between two switches.
    assert_eq!(browser.eval(rows).await, hops.len() + 1);
    let lines = "Number(document.querySelector('#map canvas').dataset.chosen)";
    assert_eq!(browser.eval(lines).await, hops.len() - 2);
    for hop in hops {
        let name = hop["node"].as_str().expect("a name");
        assert!(browser.eval(&format!("{panel}.includes('{name}')")).await == true, "{name}");
    }
    // Reasons are words, also those that this release does not know.
    let reason = async |reason: &str| {
        let script = format!("import('/path.js').then((path) => path.reasonText({reason}))");
        browser.eval(&script).await
    };
    assert_eq!(reason("'no_p_key_shared'").await, "the ends share no P_Key");
    assert_eq!(reason("{ hop_count: { least: 5, asked: null } }").await, "hop count: least: 5");
    browser.picture("fabric-path-light").await;
    browser.eval("document.querySelector('#detail header button').click()").await;
}

/// Returns a time at which there was load, milliseconds since 1970.
async fn the_map_shows_load(browser: &Browser, subnet: &Subnet) -> u128 {
    // 40 Gb/s, from the host to its switch.
    subnet.control(&["count-rate", BUSY, "1", "PortXmitData", "1250000000"]);
    let hottest = "Number(document.querySelector('#map canvas').dataset.hottest)";
    assert_eq!(browser.eval(hottest).await, 0, "links are coloured by state");
    browser.until("!document.querySelector('[data-colours=load]').disabled").await;
    browser.eval("document.querySelector('[data-colours=load]').click()").await;
    browser.until(&format!("{hottest} > 50")).await;
    assert_eq!(browser.eval("document.getElementById('state-legend').hidden").await, true);
    browser.picture("fabric-load-light").await;
    browser.theme("dark").await;
    browser.picture("fabric-load-dark").await;
    browser.theme("light").await;
    let load = browser.api("/api/v1/load").await;
    assert_eq!(load["etag"], browser.api("/api/v1/fabric").await["etag"]);
    // The same link is first everywhere. The first reading has a part of its time without load.
    let since = Instant::now();
    let busiest = loop {
        let busiest = browser.api("/api/v1/links?count=1").await["links"][0].clone();
        assert_eq!(busiest["from"]["name"], BUSY);
        if (busiest["gbps"].as_f64().unwrap() - 40.0).abs() < 8.0 {
            break busiest;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "{busiest}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    let listed = ibsmctl(&subnet.url(), &["perf", "--top", "1", "--json"]);
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    assert_eq!((listed["links"][0]["from"].clone(), 1), (busiest["from"].clone(), 1));
    let guid = busiest["from"]["guid"].as_str().expect("a GUID").to_owned();
    browser.eval(&format!("location.hash = '#/fabric/{guid}'")).await;
    let rates = "document.querySelector('#detail td.curves')?.innerText";
    browser.until(&format!("/[1-9].* \\/ /.test({rates})")).await;
    let curve = "document.querySelector('#detail td.curves canvas').width";
    assert!(browser.eval(curve).await.as_i64().unwrap() > 0);
    browser.until("document.querySelector('#detail tr.more')?.innerText.includes('Gb/s')").await;
    tokio::time::sleep(Duration::from_secs(3)).await; // Let the curve get some readings.
    browser.picture("fabric-rates-light").await;
    browser.view("overview").await;
    let first = "document.querySelector('#busy-table tbody tr')?.innerText";
    browser.until(&format!("{first}.startsWith('{BUSY} /1')")).await;
    browser.assert_fits("the busiest links").await;
    browser.eval("document.getElementById('busy').scrollIntoView()").await;
    browser.picture("busy-links-light").await;
    let loaded_ms = now_ms();
    tokio::time::sleep(Duration::from_secs(3)).await; // The history is written once a second.
    subnet.control(&["count-rate", BUSY, "1", "PortXmitData", "0"]);
    browser.view("fabric").await;
    browser.eval("document.querySelector('[data-colours=state]').click()").await;
    browser.until(&format!("{hottest} === 0")).await;
    loaded_ms
}

/// The slider is moved to a time at which there was load; now there is none.
async fn the_map_shows_an_earlier_load(browser: &Browser, loaded_ms: u128) {
    let hottest = "Number(document.querySelector('#map canvas').dataset.hottest)";
    browser.eval("document.querySelector('[data-colours=load]').click()").await;
    browser.until(&format!("{hottest} < 50")).await;
    // It has a thousand steps: the page is to show the step nearest to the time.
    let extent = browser.api("/api/v1/history").await;
    let from = extent["from_ms"].as_u64().expect("a time").max(now_ms() as u64 - 3_600_000);
    let part = (loaded_ms as u64 - from) as f64 / (now_ms() as u64 - from) as f64;
    // A choice of the span makes it end now.
    browser.eval("document.querySelector('#time-range [data-range=\"1h\"]').click()").await;
    // At once: when marks have been read, the slider is set to the time that is shown.
    let moved = "document.getElementById('time').dispatchEvent(new Event('input'))";
    let value = part * 1000.0;
    browser.eval(&format!("document.getElementById('time').value = {value}, {moved}")).await;
    browser.until(&format!("{hottest} > 50")).await;
    let legend = "document.getElementById('heat-time').innerText";
    browser.until(&format!("{legend}.startsWith('Load, read at ')")).await;
    browser.picture("fabric-then-load-light").await;
    let load = browser.api_owned(format!("/api/v1/load?at_ms={loaded_ms}")).await;
    let map = browser.api_owned(format!("/api/v1/fabric?at_ms={loaded_ms}")).await;
    assert_eq!(load["etag"], map["etag"]);
    assert_eq!(map["hosts"]["name"][load["hosts"][0].as_u64().unwrap() as usize], BUSY);
    browser.eval("document.getElementById('time-now').click()").await;
    browser.until(&format!("{hottest} < 50")).await;
}

fn now_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later").as_millis()
}

async fn the_map_shows_an_earlier_time(browser: &Browser, subnet: &Subnet) {
    browser.until("!document.getElementById('timeline').hidden").await;
    let (shown, missing) = (
        "document.querySelector('#map canvas').dataset.time",
        "document.querySelector('#map canvas').dataset.missing",
    );
    let marks = "document.querySelectorAll('#time-marks i').length";
    let marked = browser.eval(marks).await;
    let before = now_ms();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    subnet.control(&["node-down", LOST]);
    browser.until(&format!("{missing} === '1'")).await;
    let while_lost = now_ms() + 1000;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    subnet.control(&["node-up", LOST]);
    browser.until(&format!("{missing} === '0'")).await;
    // The slider has a mark for each change, without being touched.
    browser.until(&format!("{marks} >= {marked} + 2")).await;
    // Two changes back: the host was lost.
    browser.until("!document.getElementById('time-back').disabled").await;
    for _ in 0..20 {
        let before = browser.eval(shown).await;
        browser.eval("document.getElementById('time-back').click()").await;
        // The map of that time is shown when it has been read.
        browser.until(&format!("{shown} !== {before}")).await;
        if browser.eval(missing).await == "1" {
            break;
        }
    }
    assert_eq!(browser.eval(missing).await, "1", "it is missing then");
    assert_ne!(browser.eval(shown).await, "now");
    let name = LOST.split(' ').next().expect("a word");
    let listed = "document.getElementById('around').innerText";
    browser.until(&format!("{listed}.includes('{name}')")).await;
    browser.picture("fabric-then-light").await;
    browser.size(390, 844).await;
    browser.assert_fits("an earlier time on a phone").await;
    browser.picture("fabric-then-phone-light").await;
    browser.size(1280, 900).await;
    // The same by the API: nodes keep their places.
    let map = |at: u128| browser.api_owned(format!("/api/v1/fabric?at_ms={at}"));
    let (then, lost) = (map(before).await, map(while_lost).await);
    assert_eq!(then["hosts"]["name"], lost["hosts"]["name"]);
    assert_eq!(then["switches"]["x"], lost["switches"]["x"]);
    assert_eq!(then["missing"].as_array().map(Vec::len), Some(0), "{then}");
    assert_eq!(lost["missing"].as_array().map(Vec::len), Some(1), "{lost}");
    let at = lost["missing"][0].as_u64().unwrap() as usize
        - lost["switches"]["name"].as_array().unwrap().len();
    assert_eq!(lost["hosts"]["name"][at], LOST);
    let guid = lost["hosts"]["guid"][at].as_str().expect("a GUID");
    let node = browser.api_owned(format!("/api/v1/nodes/{guid}?at_ms={while_lost}")).await;
    assert_eq!((&node["missing"], &node["name"]), (&Value::Bool(true), &LOST.into()));
    let node = browser.api_owned(format!("/api/v1/nodes/{guid}?at_ms={before}")).await;
    assert_eq!((&node["missing"], &node["ports"][0]["state"]), (&false.into(), &"Active".into()));
    let lid = &then["hosts"]["lid"][at];
    assert!(lid.as_u64().is_some_and(|lid| lid != 0), "{lid}");
    assert_eq!((&node["lid"], &node["ports"][0]["lid"]), (lid, lid));
    browser.eval("document.getElementById('time-now').click()").await;
    browser.until(&format!("{shown} === 'now' && {missing} === '0'")).await;
    browser.until("document.getElementById('around').hidden").await;
}
