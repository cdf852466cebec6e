//! A port's P_Key and GID tables, which headers refer to by index, and its LID.

use std::io;

use super::UmadPort;
use crate::types::{Gid, Lid, PKey};

/// Limit of GID table entries, as the header's index has 8 bits.
const GIDS_MAX: usize = 256;

/// The tables, as far as they have been read.
#[derive(Debug)]
pub(in crate::transport) struct Tables {
    lid: Lid,
    pkeys: Vec<PKey>,
    /// Entries read so far.
    gids: Box<[Option<Gid>; GIDS_MAX]>,
    /// The index found last.
    gid_index: u8,
    /// Whether all entries have been read since the last refresh.
    is_scanned: bool,
    /// Whether the P_Keys have been read on demand since the last refresh.
    is_reread: bool,
}

impl Default for Tables {
    fn default() -> Self {
        let gids = Box::new([None; GIDS_MAX]);
        let (pkeys, lid) = (Vec::new(), Lid::NONE);
        Self { lid, pkeys, gids, gid_index: 0, is_scanned: false, is_reread: false }
    }
}

impl Tables {
    /// Reads the entries in use again.
    pub(in crate::transport) fn refresh(&mut self, port: &UmadPort) -> io::Result<()> {
        self.lid = port.lid()?;
        self.pkeys = port.pkeys()?;
        for (index, gid) in (0..=u8::MAX).zip(self.gids.iter_mut()) {
            if gid.is_some() || index == 0 {
                *gid = Some(port.gid(index)?);
            }
        }
        (self.is_scanned, self.is_reread) = (false, false);
        Ok(())
    }

    /// The base LID.
    pub(in crate::transport) fn lid(&self) -> Lid {
        self.lid
    }

    /// The P_Key at `index`.
    pub(in crate::transport) fn pkey(&mut self, port: &UmadPort, index: u16) -> PKey {
        let known = self.pkeys.get(usize::from(index)).filter(|pkey| pkey.is_valid());
        if let Some(&pkey) = known {
            return pkey;
        }
        // The subnet manager may have added one since.
        if !std::mem::replace(&mut self.is_reread, true)
            && let Ok(pkeys) = port.pkeys()
        {
            self.pkeys = pkeys;
        }
        self.pkeys.get(usize::from(index)).copied().unwrap_or_default()
    }

    /// Index of a P_Key, or else of another key of the same partition.
    pub(in crate::transport) fn pkey_index(&self, pkey: PKey) -> Option<u16> {
        let place = |fits: &dyn Fn(&PKey) -> bool| self.pkeys.iter().position(fits);
        let exactly = place(&|other| *other == pkey && pkey.is_valid());
        let index =
            exactly.or_else(|| place(&|other| pkey.is_valid() && other.base() == pkey.base()))?;
        u16::try_from(index).ok()
    }

    /// The GID at `index`.
    pub(in crate::transport) fn gid(&mut self, port: &UmadPort, index: u8) -> Gid {
        self.gid_index = index;
        let place = &mut self.gids[usize::from(index)];
        *place.get_or_insert_with(|| port.gid(index).unwrap_or_default())
    }

    /// Index of a GID of this port; 0, which every port has, if it is not in the table.
    pub(in crate::transport) fn gid_index(&mut self, port: &UmadPort, gid: Gid) -> u8 {
        if self.gids[usize::from(self.gid_index)] == Some(gid) {
            return self.gid_index;
        }
        if !self.gids.contains(&Some(gid)) && !std::mem::replace(&mut self.is_scanned, true) {
            for index in 0..=u8::MAX {
                self.gid(port, index);
            }
        }
        let found = self.gids.iter().position(|other| *other == Some(gid));
        self.gid_index = found.unwrap_or(0) as u8;
        self.gid_index
    }
}
