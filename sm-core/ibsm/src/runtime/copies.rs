//! Passes what is known of the copy of a master's registry between node, publisher and registry.

use sa_proto::snapshot::Session;

use super::follow::Progress;
use super::registry::RegistryHandle;
use crate::node::Followed;
use crate::publish::Publisher;

/// What the node, the publisher and the registry learn of the copy of a master's registry.
#[derive(Debug, Default)]
pub struct CopyExchange {
    /// The highest session of another manager that the publisher was given.
    known: Session,
}

impl CopyExchange {
    /// Passes on what is new; returns the state of the copy, for the node.
    pub fn exchange(
        &mut self,
        publisher: &Publisher,
        registry: &RegistryHandle,
        progress: &Progress,
    ) -> Followed {
        if let Some(snapshot) = publisher.take_recalled()
            && progress.recall(&snapshot)
        {
            registry.followed_changed();
        }
        let followed = progress.followed();
        let known = followed.publishing().max(registry.held().session);
        if known > self.known && publisher.session().is_none() {
            self.known = known;
            publisher.note_session(known);
        }
        followed
    }
}
