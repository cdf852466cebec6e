//! The requests of a run and the required content of their answers, in memory and as a file.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

use crate::MAD_LEN;

/// A request, its requester, and the required content of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// LID of the requester.
    pub lid: u16,
    /// Its QP.
    pub qpn: u32,
    /// Offset of [`expected`](Self::expected) in the answer's first MAD, in bytes.
    pub at: u16,
    /// Two bytes of the answer, as a big-endian number.
    pub expected: u16,
    /// The MAD; its transaction ID is set when it is fed.
    pub mad: [u8; MAD_LEN],
}

const HEAD_LEN: usize = 10;
const REQUEST_LEN: usize = HEAD_LEN + MAD_LEN;

/// Requests that are fed in turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Book(pub Vec<Request>);

impl Book {
    /// Writes it to a file.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        for request in &self.0 {
            file.write_all(&request.lid.to_le_bytes())?;
            file.write_all(&request.qpn.to_le_bytes())?;
            file.write_all(&request.at.to_le_bytes())?;
            file.write_all(&request.expected.to_le_bytes())?;
            file.write_all(&request.mad)?;
        }
        file.flush()
    }

    /// Reads a file that [`write`](Self::write) wrote.
    pub fn read(path: &Path) -> io::Result<Self> {
        let mut bytes = Vec::new();
        BufReader::new(File::open(path)?).read_to_end(&mut bytes)?;
        let requests = bytes.chunks_exact(REQUEST_LEN);
        if bytes.is_empty() || !requests.remainder().is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no file of requests"));
        }
        let short = |bytes: &[u8], at| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let request = |bytes: &[u8]| {
            let mut mad = [0; MAD_LEN];
            mad.copy_from_slice(&bytes[HEAD_LEN..]);
            Request {
                lid: short(bytes, 0),
                qpn: u32::from_le_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]),
                at: short(bytes, 6),
                expected: short(bytes, 8),
                mad,
            }
        };
        let book = Self(requests.map(request).collect());
        match book.0.iter().find(|request| usize::from(request.at) + 2 > MAD_LEN) {
            Some(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "looks beyond the MAD")),
            None => Ok(book),
        }
    }
}
