//! Links that run below the width or speed that both ends have enabled; routes avoid them with
//! `avoid_throttled_links`.

use tracing::{info, warn};

use super::Sweeper;
use crate::manage::throttled::{ThrottledLinks, shortfall};

/// Maximum number of links named when the list changes.
const NAMED_MAX: usize = 8;

impl Sweeper {
    /// Links between switches that routes avoid because they are throttled.
    pub fn throttled_links(&self) -> usize {
        if self.subnet.state.up { self.throttled.count() } else { 0 }
    }

    /// Finds throttled links, and reports if the links to avoid have changed.
    pub(super) fn find_throttled_links(&mut self) {
        let fabric = &self.subnet.fabric;
        let found = match self.subnet.settings.avoid_throttled_links {
            true => {
                ThrottledLinks::find(fabric, |node| !self.avoided.contains(fabric.node(node).guid))
            }
            false => ThrottledLinks::default(),
        };
        if found == self.throttled {
            return;
        }
        self.throttled = found;
        let (count, needed) = (self.throttled.count(), self.throttled.needed());
        if needed > 0 {
            warn!(
                "{needed} links between switches run below what both ends have enabled, but stay \
                 in use: no other path exists"
            );
        }
        if count == 0 {
            info!("no link is avoided for its width or speed");
            return;
        }
        let name = |port| {
            let far = fabric.port(port).peer().map(|peer| fabric.describe(peer));
            let could = shortfall(fabric, port).map(|(width, speed)| format!("{width} {speed}"));
            let (far, could) = (far.unwrap_or_default(), could.unwrap_or_default());
            format!("{} to {far} supports {could}", fabric.describe(port))
        };
        let names: Vec<_> = self.throttled.links(fabric).take(NAMED_MAX).map(name).collect();
        let more = count - names.len();
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        warn!(
            "routes avoid {count} links between switches that run below what both ends have \
             enabled (avoid_throttled_links): {}{more}",
            names.join("; ")
        );
    }
}
