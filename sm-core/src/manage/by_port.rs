//! A table with a value for each of most ports.

use crate::fabric::PortIndex;

/// A value for each of most ports.
#[derive(Clone, Debug)]
pub(super) struct ByPort<T> {
    by_index: Vec<Option<T>>,
}

impl<T> Default for ByPort<T> {
    fn default() -> Self {
        Self { by_index: Vec::new() }
    }
}

impl<T> ByPort<T> {
    pub(super) fn get(&self, port: PortIndex) -> Option<&T> {
        self.by_index.get(port.get())?.as_ref()
    }

    pub(super) fn insert(&mut self, port: PortIndex, value: T) {
        if self.by_index.len() <= port.get() {
            self.by_index.resize_with(port.get() + 1, || None);
        }
        self.by_index[port.get()] = Some(value);
    }

    /// All values, ascending by port.
    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.by_index.iter().flatten()
    }

    /// Ports with their values, ascending.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (PortIndex, &mut T)> {
        let all = (0..).zip(&mut self.by_index);
        all.filter_map(|(bits, value)| Some((PortIndex::from_bits(bits), value.as_mut()?)))
    }

    /// Ports that have something, ascending.
    pub(super) fn ports(&self) -> impl Iterator<Item = PortIndex> {
        let all = (0..).zip(&self.by_index).filter(|(_, value)| value.is_some());
        all.map(|(bits, _)| PortIndex::from_bits(bits))
    }
}
