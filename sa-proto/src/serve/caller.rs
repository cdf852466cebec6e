//! A connection, and who is at its other end.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use super::certified::Certified;
use super::gate::Slot;
use crate::crowd::Share;
use crate::trust::Role;

/// How the caller of a connection is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grounds {
    /// By its certificate.
    Certificate,
    /// By the user of this host who owns its socket.
    User(u32),
    /// Not at all: it connected from another machine without TLS, which `--insecure` permits.
    Insecure,
}

/// The other end of a connection. Calls have it among their extensions.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Where it connected from.
    pub address: SocketAddr,
    /// How it is known.
    pub grounds: Grounds,
    /// Its roles.
    pub roles: Arc<[Role]>,
}

impl Caller {
    /// What its connections and calls are counted by.
    pub fn share(&self) -> Share {
        match self.grounds {
            Grounds::User(user) => Share::User(user),
            Grounds::Certificate | Grounds::Insecure => Share::of_host(self.address.ip()),
        }
    }
}

/// An established connection.
pub struct Connection {
    stream: Stream,
    /// Set if the peer has a certificate.
    certified: Option<Certified>,
    caller: Caller,
    /// Freed with the connection.
    _slot: Slot,
}

pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection {
    pub(super) fn new(
        stream: Stream,
        certified: Option<Certified>,
        caller: Caller,
        slot: Slot,
    ) -> Self {
        Self { stream, certified, caller, _slot: slot }
    }
}

impl Connected for Connection {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        self.caller.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // A server always waits for more to read, so this is called when the time has come.
        if let Some(certified) = &mut self.certified
            && Pin::new(&mut certified.closed).poll(context).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(context),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(context),
        }
    }
}
