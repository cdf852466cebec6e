//! The metrics of daemons, fetched and parsed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;

/// The body of an answer to a GET; panics on any other status.
pub(crate) fn get(address: &str, path: &str, accept: &str) -> String {
    try_get(address, path, accept).unwrap_or_else(|error| panic!("http://{address}{path}: {error}"))
}

/// The body of an answer to a GET, or the whole answer as an error.
pub(crate) fn try_get(address: &str, path: &str, accept: &str) -> Result<String, String> {
    let answer = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: x\r\nAccept: {accept}\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    let text = answer().map_err(|error| error.to_string())?;
    match text.split_once("\r\n\r\n") {
        Some((head, body)) if head.contains(" 200 ") => Ok(body.to_owned()),
        _ => Err(text),
    }
}

/// The samples of one scrape: series with their labels, and values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scrape(pub(crate) BTreeMap<String, f64>);

impl Scrape {
    pub(crate) fn of(address: &str) -> Self {
        let text = get(address, "/metrics", "*/*");
        assert!(text.ends_with("# EOF\n"), "{text}");
        let samples = text.lines().filter(|line| !line.starts_with('#')).map(|line| {
            let (series, value) = line.rsplit_once(' ').expect("a series and a value");
            (series.to_owned(), value.parse().expect("a number"))
        });
        let mut all = BTreeMap::new();
        for (series, value) in samples {
            assert_eq!(all.insert(series.clone(), value), None, "{series} is there twice");
        }
        Self(all)
    }

    /// The sum over all series of a metric.
    pub(crate) fn sum(&self, name: &str) -> u64 {
        let of = |series: &str| series.split('{').next() == Some(name);
        self.0.iter().filter(|(series, _)| of(series)).map(|(_, value)| *value).sum::<f64>() as u64
    }

    /// Series that never decrease: counters, and counts of histograms.
    pub(crate) fn rising(&self) -> impl Iterator<Item = (&String, f64)> {
        let is_rising = |series: &str| {
            let name = series.split('{').next().unwrap_or_default();
            ["_total", "_bucket", "_count", "_sum"].iter().any(|suffix| name.ends_with(suffix))
        };
        self.0.iter().filter(move |(series, _)| is_rising(series)).map(|(s, value)| (s, *value))
    }
}

/// Metrics by the names used in queries, from a scrape in the older format.
pub(crate) fn names(text: &str) -> BTreeSet<String> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types.map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect()
}
