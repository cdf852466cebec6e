//! `/metrics` and `/healthz`, for a monitoring system: one request a connection.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use sa_proto::metrics::Format;

use crate::metrics::Metrics;

/// Longest request read.
const REQUEST_MAX: usize = 4096;

/// Connections served at a time; others wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 64;

/// How long a client may take to send its request and to take the answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// How long not to accept after that has failed: too many descriptors are open.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves from a thread of its own for as long as the process lives. Returns the address.
pub fn serve(address: SocketAddr, metrics: Arc<Metrics>) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let work = move || {
        if let Err(error) = runtime.block_on(accept(listener, metrics)) {
            tracing::error!(%error, "metrics are no longer served");
        }
    };
    thread::Builder::new().name("ibsa-http".to_owned()).spawn(work)?;
    Ok(address)
}

async fn accept(listener: TcpListener, metrics: Arc<Metrics>) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let permit = Arc::clone(&room).acquire_owned().await.map_err(io::Error::other)?;
        let connection = match listener.accept().await {
            Ok((connection, _)) => connection,
            Err(error) => {
                tracing::debug!(%error, "monitoring client not accepted");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let metrics = Arc::clone(&metrics);
        tokio::spawn(async move {
            let served = tokio::time::timeout(TIMEOUT, answer(connection, &metrics)).await;
            if let Err(error) = served.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                tracing::debug!(%error, "monitoring client not served");
            }
            drop(permit);
        });
    }
}

async fn answer(mut connection: TcpStream, metrics: &Arc<Metrics>) -> io::Result<()> {
    let mut request = [0; REQUEST_MAX];
    let mut len = 0;
    while !request[..len].windows(4).any(|end| end == b"\r\n\r\n") && len < request.len() {
        match connection.read(&mut request[len..]).await? {
            0 => break,
            read => len += read,
        }
    }
    let (status, content_type, body) = respond(&request[..len], metrics);
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    connection.write_all(head.as_bytes()).await?;
    connection.write_all(body.as_bytes()).await?;
    connection.shutdown().await
}

const TEXT: &str = "text/plain; charset=utf-8";
fn respond(request: &[u8], metrics: &Arc<Metrics>) -> (&'static str, &'static str, String) {
    let line = request.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|&byte| byte == b' ');
    match (words.next(), words.next()) {
        (Some(b"GET"), Some(b"/metrics")) => {
            let format = Format::wanted_by(request);
            ("200 OK", format.content_type(), metrics.render(format))
        }
        (Some(b"GET"), Some(b"/healthz")) if metrics.is_serving() => {
            ("200 OK", TEXT, "serving\n".to_owned())
        }
        (Some(b"GET"), Some(b"/healthz")) => {
            ("503 Service Unavailable", TEXT, "no snapshot yet\n".to_owned())
        }
        (Some(b"GET"), _) => ("404 Not Found", TEXT, "try /metrics or /healthz\n".to_owned()),
        _ => ("405 Method Not Allowed", TEXT, "only GET is served\n".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Instant;

    fn get(address: SocketAddr, request: &str) -> String {
        let mut connection = TcpStream::connect(address).unwrap();
        connection.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn health_tells_whether_there_is_a_snapshot() {
        let address = serve("127.0.0.1:0".parse().unwrap(), Arc::default()).unwrap();
        let health = get(address, "GET /healthz HTTP/1.1\r\n\r\n");
        assert!(health.starts_with("HTTP/1.1 503") && health.ends_with("no snapshot yet\n"));
        let metrics = get(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(metrics.starts_with("HTTP/1.1 200") && metrics.ends_with("# EOF\n"), "{metrics}");
        assert!(get(address, "POST / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        assert!(get(address, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    }

    #[test]
    fn clients_that_say_nothing_hold_up_nobody() {
        let address = serve("127.0.0.1:0".parse().unwrap(), Arc::default()).unwrap();
        let silent: Vec<_> =
            (0..CONNECTIONS_MAX - 1).map(|_| TcpStream::connect(address).unwrap()).collect();
        let start = Instant::now();
        assert!(get(address, "GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
        assert!(start.elapsed() < TIMEOUT, "none of the {} had timed out", silent.len());
    }
}
