//! The keys by which the managers of a subnet know each other.
//!
//! A manager shows the SM_Key in its SMInfo, and OpenSM ignores one that does not. But a program of
//! the host reads what a port with IsSM is sent, and any host can set IsSM. So where an M_Key is
//! set, requests show a proof: a hash of the M_Key of the port that they are sent to and of the
//! SM_Key, from which neither can be found.

use sha2::{Digest, Sha256};

/// The SM_Key and the M_Key of a subnet manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmKeys {
    /// The SM_Key; with 0 any other is accepted.
    pub sm_key: u64,
    /// The M_Key of the settings, 0 if none is set.
    pub m_key: u64,
}

impl SmKeys {
    /// What a request to a port that holds this M_Key shows in the place of the SM_Key.
    pub fn shown_to(self, m_key: u64) -> u64 {
        self.proof(m_key).or_else(|| self.proof(self.m_key)).unwrap_or(self.sm_key)
    }

    /// Whether a manager that shows `shown` knows the SM_Key, and, unless it shows that, the M_Key
    /// of the settings or the one of a port.
    pub fn are_shown_by(self, shown: u64, m_key: u64) -> bool {
        let has_proof = |m_key| self.proof(m_key) == Some(shown);
        shown == self.sm_key || has_proof(self.m_key) || has_proof(m_key)
    }

    /// Whether an SMInfo of a port that holds this M_Key is of a manager of our subnet.
    pub fn accept(self, shown: u64, m_key: u64) -> bool {
        self.sm_key == 0 || self.are_shown_by(shown, m_key)
    }

    fn proof(self, m_key: u64) -> Option<u64> {
        (m_key != 0).then(|| {
            let hash = Sha256::new()
                .chain_update(b"SMInfo")
                .chain_update(m_key.to_be_bytes())
                .chain_update(self.sm_key.to_be_bytes())
                .finalize();
            u64::from_be_bytes(*hash.first_chunk().expect("32 bytes"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: u64 = 0xDEAD;
    const NEW: u64 = 0xBEEF;

    #[test]
    fn managers_know_each_other_by_the_m_key_of_either_port() {
        let keys = |m_key| SmKeys { sm_key: 1, m_key };
        let shown = keys(OLD).shown_to(OLD);
        assert!(![0, 1, OLD].contains(&shown), "it shows neither key");
        assert!(keys(OLD).accept(shown, 0));
        assert!(!keys(NEW).accept(shown, 0) && !keys(0).accept(shown, 0));
        // One that has another M_Key, or none, knows that of the port.
        assert!(keys(NEW).accept(keys(OLD).shown_to(OLD), OLD));
        assert!(keys(OLD).are_shown_by(keys(0).shown_to(OLD), OLD));
        assert_eq!(keys(OLD).shown_to(0), shown, "the SM_Key is not shown to a port without one");
        assert_eq!(keys(0).shown_to(0), 1);
        assert!(!keys(OLD).accept(SmKeys { sm_key: 2, m_key: OLD }.shown_to(OLD), OLD));
    }
}
