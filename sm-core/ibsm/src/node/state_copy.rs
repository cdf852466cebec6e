//! The copy of the master's state besides the registry, while standing by: LIDs of ports that are
//! off, M_Keys, links, and the baseline.
//!
//! What arrives goes into the tables of the sweeper, and from there into the files of the state
//! directory, as this SM's own. It counts as stored once these files are written. Entries that the
//! master does not have stay as long as they contradict none of its own: a master with an empty
//! state directory erases nothing.

use std::sync::Arc;

use sa_proto::snapshot::Session;
use sa_proto::state::{Documents, StateVersion};
use tracing::info;

use super::files::StateFiles;
use super::master_state::MasterState;
use super::succession::Followed;
use sm_core::sweep::Sweeper;

/// Which state of a master this SM has.
#[derive(Debug, Default)]
pub(super) struct StateCopy {
    /// In the tables.
    applied: StateVersion,
    /// In the files, too.
    stored: StateVersion,
    /// The last one of a later master whose M_Keys were taken over, while this SM led.
    keys: StateVersion,
    /// Whether operators' files are copied.
    copies_files: bool,
    /// Hash of the baseline that was taken over last.
    baseline: Option<u128>,
    /// Operators' files as they were copied last.
    copied: Documents,
}

impl StateCopy {
    /// No state was received. `copies_files`: whether operators' files are copied.
    pub(super) fn new(copies_files: bool) -> Self {
        Self { copies_files, ..Self::default() }
    }

    /// Takes over a state that was received, if it is new.
    pub(super) fn follow(
        &mut self,
        followed: &Followed,
        sweeper: &mut Sweeper,
        files: &mut StateFiles,
    ) {
        if let Some(state) = &followed.master_state
            && state.version > self.applied
        {
            self.apply(state, sweeper, files);
        }
        if self.stored != self.applied && files.are_tables_written() {
            self.stored = self.applied;
        }
    }

    /// This SM still leads in session `own`, and another one in a later session: it took over while
    /// this one was stopped, or without a link. Ports may have its M_Keys, and ignore requests with
    /// those that this SM set: without them it would never find the other one, and never stand by.
    pub(super) fn follow_keys(&mut self, followed: &Followed, own: Session, sweeper: &mut Sweeper) {
        if let Some(state) = &followed.master_state
            && state.version.session > own
            && state.version > self.keys
        {
            self.keys = state.version;
            sweeper.follow_m_keys(&state.m_keys, &state.neighbours);
        }
    }

    fn apply(&mut self, state: &Arc<MasterState>, sweeper: &mut Sweeper, files: &mut StateFiles) {
        if sweeper.follow_lids(&state.lids) {
            files.lids_changed();
        }
        if state.version.session != self.applied.session {
            let kept = sweeper.lids().len().saturating_sub(state.lids.len());
            info!(
                "following LIDs, M_Keys and links of the master: {state:?}; {kept} LIDs that it \
                 does not know stay reserved"
            );
        }
        sweeper.follow_m_keys(&state.m_keys, &state.neighbours);
        // Not what this state changed: what a sweep as standby found is in no file yet.
        files.compare_keys_and_links(sweeper);
        if let Some(baseline) = &state.baseline
            && self.baseline.replace(baseline.hash) != Some(baseline.hash)
        {
            files.baseline_followed(baseline.clone());
        }
        if self.copies_files && self.copied != state.files {
            self.copied.clone_from(&state.files);
            files.master_files_followed(state.clone());
        }
        self.applied = state.version;
    }

    /// The version that is on disk.
    pub(super) fn stored(&self) -> StateVersion {
        self.stored
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use ib_mad::types::Guid;
    use sa_proto::state::{Document, Kind};
    use sm_config::Settings;
    use sm_core::manage::lid::LidTable;
    use sm_core::manage::mkey::MKeyTable;

    use super::super::files::{SavedState, StateWrite};
    use super::super::master_state::{BASELINE, LIDS, M_KEYS, NEIGHBOURS};
    use super::*;

    fn documents(all: &[(&str, &'static str)]) -> Documents {
        let all = all.iter().map(|(name, text)| {
            ((*name).to_owned(), Arc::new(Document::new(Kind::StateFile, name, *text)))
        });
        all.collect()
    }

    fn state(number: u64, lids: &'static str) -> MasterState {
        let session = Session { epoch: 5, sm_guid: Guid(1) };
        let all = documents(&[
            (LIDS, lids),
            (M_KEYS, "0x1 0xdead"),
            (NEIGHBOURS, "0x1:1 0x2:1\n0x2:1 0x1:1"),
        ]);
        MasterState::read(StateVersion { session, number }, &all).0
    }

    fn followed(state: MasterState) -> Followed {
        Followed { master_state: Some(Arc::new(state)), ..Followed::default() }
    }

    fn files() -> (StateFiles, Sweeper) {
        let saved =
            SavedState { m_keys: MKeyTable::default(), neighbours: Arc::default(), origin: None };
        (StateFiles::new(saved), Sweeper::new(Settings::default(), LidTable::default(), 0))
    }

    #[test]
    fn a_state_counts_as_stored_when_all_its_files_are_written() {
        let (mut copy, (mut files, mut sweeper)) = (StateCopy::default(), files());
        let now = Instant::now();
        let first = state(1, "0x1 1 1");
        copy.follow(&followed(first.clone()), &mut sweeper, &mut files);
        let mut open: Vec<StateWrite> =
            std::iter::from_fn(|| files.poll_write(now, &mut sweeper, || 0)).collect();
        assert_eq!(open.len(), 3, "{open:?}");
        while let Some(write) = open.pop() {
            copy.follow(&followed(first.clone()), &mut sweeper, &mut files);
            assert_eq!(copy.stored(), StateVersion::default());
            files.handle_written(now, write, Ok(()));
        }
        copy.follow(&followed(first.clone()), &mut sweeper, &mut files);
        assert_eq!(copy.stored(), first.version);
        // Nothing is written for a state that is the same.
        let same = MasterState { version: StateVersion { number: 2, ..first.version }, ..first };
        copy.follow(&followed(same.clone()), &mut sweeper, &mut files);
        assert!(files.poll_write(now, &mut sweeper, || 0).is_none());
        assert_eq!(copy.stored(), same.version);
    }

    #[test]
    fn a_state_that_could_not_be_written_is_not_stored() {
        let (mut copy, (mut files, mut sweeper)) = (StateCopy::default(), files());
        let now = Instant::now();
        copy.follow(&followed(state(1, "0x1 1 1")), &mut sweeper, &mut files);
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        while let Some(write) = files.poll_write(now, &mut sweeper, || 0) {
            let result = match write {
                StateWrite::Lids(_) => Err(&full as &(dyn std::error::Error + Send + Sync)),
                _ => Ok(()),
            };
            files.handle_written(now, write, result);
        }
        copy.follow(&followed(state(1, "0x1 1 1")), &mut sweeper, &mut files);
        assert_eq!(copy.stored(), StateVersion::default());
    }

    #[test]
    fn operators_files_are_copied_when_they_change_if_that_is_wanted() {
        let now = Instant::now();
        for copies_files in [true, false] {
            let (mut copy, (mut files, mut sweeper)) = (StateCopy::new(copies_files), files());
            let mut written = |number, text: &'static str| {
                let mut state = state(number, "0x1 1 1");
                let file = Document::new(Kind::OperatorsFile, "partition_config_file", text);
                state.files.insert(file.name.clone(), Arc::new(file));
                let followed = followed(state.clone());
                copy.follow(&followed, &mut sweeper, &mut files);
                let mut count = 0;
                while let Some(write) = files.poll_write(now, &mut sweeper, || 0) {
                    count += usize::from(matches!(write, StateWrite::MasterFiles(_)));
                    files.handle_written(now, write, Ok(()));
                }
                copy.follow(&followed, &mut sweeper, &mut files);
                assert_eq!(copy.stored(), state.version);
                count
            };
            let counts = [written(1, "a"), written(2, "a"), written(3, "b")];
            let copied = usize::from(copies_files);
            assert_eq!(counts, [copied, 0, copied]);
        }
    }

    /// Regression: a master that had been stopped went on when another one had set M_Keys of its
    /// own. It found no port and no other manager, and remained master.
    #[test]
    fn a_master_learns_the_m_keys_of_a_later_one_only() {
        let (mut copy, (_, mut sweeper)) = (StateCopy::default(), files());
        let later = followed(state(1, "0x1 1 1"));
        let session = later.master_state.as_ref().unwrap().version.session;
        let key = |sweeper: &Sweeper| sweeper.m_keys().get(Guid(1));
        copy.follow_keys(&later, session, &mut sweeper);
        assert_eq!(key(&sweeper), None, "its own session");
        let before = Session { epoch: session.epoch - 1, ..session };
        copy.follow_keys(&later, before, &mut sweeper);
        assert!(key(&sweeper).is_some());
        assert_eq!(copy.stored(), StateVersion::default(), "it is in no file");
    }

    /// Regression: after a failover, what was missing from the baseline was no problem any more.
    #[test]
    fn the_baseline_is_written_when_it_changes_and_counts_as_stored_then() {
        let (mut copy, (mut files, mut sweeper)) = (StateCopy::default(), files());
        let now = Instant::now();
        let mut written = |number, text: Option<&'static str>| {
            let mut state = state(number, "0x1 1 1");
            let document = |text| Arc::new(Document::new(Kind::StateFile, BASELINE, text));
            state.baseline = text.map(document);
            copy.follow(&followed(state.clone()), &mut sweeper, &mut files);
            let mut texts = Vec::new();
            while let Some(write) = files.poll_write(now, &mut sweeper, || 0) {
                let is_stored = copy.stored() == state.version;
                if let StateWrite::Baseline(document) = &write {
                    texts.extend(document.text.as_deref().map(<[u8]>::to_vec));
                    assert!(!is_stored);
                }
                files.handle_written(now, write, Ok(()));
            }
            copy.follow(&followed(state.clone()), &mut sweeper, &mut files);
            assert_eq!(copy.stored(), state.version);
            texts
        };
        assert!(written(1, None).is_empty(), "the own one stays");
        assert_eq!(written(2, Some("a")), [b"a"]);
        assert!(written(3, Some("a")).is_empty());
        assert_eq!(written(4, Some("")), [b""], "the master's was removed");
    }

    #[test]
    fn no_key_is_shown_in_a_log() {
        let text = format!("{:?}", followed(state(1, "0x1 1 1")));
        assert!(!text.contains("dead"), "{text}");
    }
}
