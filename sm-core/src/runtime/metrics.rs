//! Metrics for Prometheus, and the few lines of HTTP that serve them.
//!
//! The loop stores what it knows once in a while; a thread of its own renders and serves it, so
//! that a slow reader costs the subnet manager nothing.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tracing::{debug, error, info};

/// Longest request read, bytes.
const REQUEST_LEN_MAX: usize = 8 << 10;
/// Connections served at once.
const CONNECTIONS_MAX: usize = 64;
/// Time for a request to arrive and its answer to leave.
const PATIENCE: Duration = Duration::from_secs(2);

/// A value and what it means.
#[derive(Clone, Debug)]
pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) value: Value,
}

/// A value of either kind.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    /// Only grows.
    Counter(u64),
    /// Goes up and down.
    Gauge(f64),
}

/// The values as they were told last.
pub(super) type Metrics = Arc<ArcSwap<Vec<Metric>>>;

#[derive(Debug)]
struct Source(Metrics);

impl Collector for Source {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for metric in self.0.load().iter() {
            match metric.value {
                Value::Counter(value) => {
                    let counter = ConstCounter::new(value);
                    let kind = counter.metric_type();
                    let encoder =
                        encoder.encode_descriptor(metric.name, metric.help, None, kind)?;
                    counter.encode(encoder)?;
                }
                Value::Gauge(value) => {
                    let gauge = ConstGauge::new(value);
                    let kind = gauge.metric_type();
                    let encoder =
                        encoder.encode_descriptor(metric.name, metric.help, None, kind)?;
                    gauge.encode(encoder)?;
                }
            }
        }
        Ok(())
    }
}

/// Serves `metrics` at `address` for as long as the process lives.
pub(super) fn serve(address: SocketAddr, metrics: Metrics) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut registry = Registry::with_prefix("ibsm");
    registry.register_collector(Box::new(Source(metrics)));
    std::thread::Builder::new().name("metrics".to_owned()).spawn(move || {
        if let Err(failure) = runtime.block_on(accept(listener, Arc::new(registry))) {
            error!("metrics are no longer served: {failure}");
        }
    })?;
    info!("metrics at http://{address}/metrics");
    Ok(address)
}

async fn accept(listener: TcpListener, registry: Arc<Registry>) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // Connections beyond the limit wait in the kernel's queue.
        let Ok(permit) = room.clone().acquire_owned().await else { return Ok(()) };
        let (stream, _) = listener.accept().await?;
        let registry = registry.clone();
        tokio::spawn(async move {
            match tokio::time::timeout(PATIENCE, answer(stream, &registry)).await {
                Ok(Ok(())) => {}
                Ok(Err(failure)) => debug!("metrics: {failure}"),
                Err(_) => debug!("metrics: client too slow"),
            }
            drop(permit);
        });
    }
}

async fn answer(mut stream: TcpStream, registry: &Registry) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|window| window == b"\r\n\r\n") {
        let mut chunk = [0; 1024];
        let got = stream.read(&mut chunk).await?;
        if got == 0 || request.len() + got > REQUEST_LEN_MAX {
            return Ok(());
        }
        request.extend_from_slice(&chunk[..got]);
    }
    let known = request.starts_with(b"GET /metrics ") || request.starts_with(b"GET /metrics?");
    let (status, body) = if known {
        let mut body = String::new();
        text::encode(&mut body, registry).map_err(io::Error::other)?;
        ("200 OK", body)
    } else {
        ("404 Not Found", "see /metrics\n".to_owned())
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/openmetrics-text; version=1.0.0; \
         charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn values_are_served_as_they_were_told_last() {
        let metrics = Metrics::default();
        let address = serve(([127, 0, 0, 1], 0).into(), metrics.clone()).unwrap();
        metrics.store(Arc::new(vec![
            Metric { name: "smps_sent", help: "SMPs sent", value: Value::Counter(7) },
            Metric { name: "up", help: "Whether the subnet is up", value: Value::Gauge(1.0) },
        ]));
        let text = get(address, "/metrics");
        assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
        assert!(text.contains("\nibsm_smps_sent_total 7\n"), "{text}");
        assert!(text.contains("\nibsm_up 1.0\n"), "{text}");
        assert!(get(address, "/").starts_with("HTTP/1.1 404"));
    }
}
