//! Counts of paths answered, by QoS level. A worker counts in its own flat array. A level's name
//! keeps its place there for the lifetime of the process, so that reloading the policy never
//! assigns the count of one level to another.

use arc_swap::ArcSwap;
use sa_proto::metrics::Counter;

/// Places of counters: one for paths that fall under no level, one for levels that came too late
/// to get a separate one.
const SLOTS: usize = 256;
/// Maximum length of a reported name, in bytes.
const NAME_LEN_MAX: usize = 64;

/// The place of a level's counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelSlot(u8);

impl LevelSlot {
    /// Paths without a level.
    pub const NONE: Self = Self(0);
    /// Levels without a separate counter.
    pub const OTHER: Self = Self((SLOTS - 1) as u8);
}

/// Paths answered by one worker, by level.
#[derive(Debug)]
pub struct LevelCounts([Counter; SLOTS]);

impl Default for LevelCounts {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Counter::default()))
    }
}

impl LevelCounts {
    /// Counts a path.
    #[inline]
    pub fn increment(&self, slot: LevelSlot) {
        self.0[usize::from(slot.0)].increment();
    }

    /// The count so far.
    pub fn get(&self, slot: LevelSlot) -> u64 {
        self.0[usize::from(slot.0)].get()
    }
}

/// Which level has which counter. One thread gives out places, others read the names.
#[derive(Debug, Default)]
pub struct LevelNames(ArcSwap<Vec<String>>);

impl LevelNames {
    /// The place of the level with this name, from now on.
    pub fn slot(&self, name: &str) -> LevelSlot {
        let name = match name {
            "" => "unnamed",
            name => {
                let mut ends = (0..=NAME_LEN_MAX.min(name.len())).rev();
                &name[..ends.find(|&end| name.is_char_boundary(end)).unwrap_or(0)]
            }
        };
        let names = self.0.load();
        let at = names.iter().position(|known| known == name).unwrap_or(names.len());
        if at + 2 >= SLOTS {
            return LevelSlot::OTHER;
        }
        if at == names.len() {
            self.0.store(
                names
                    .iter()
                    .map(String::as_str)
                    .chain([name])
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
                    .into(),
            );
        }
        LevelSlot(at as u8 + 1)
    }

    /// All places in use, with the names of their levels.
    pub fn all(&self) -> Vec<(String, LevelSlot)> {
        let names = self.0.load();
        let named = names.iter().zip(1..).map(|(name, at)| (name.clone(), LevelSlot(at)));
        let mut all = vec![("none".to_owned(), LevelSlot::NONE)];
        all.extend(named);
        all.push(("other".to_owned(), LevelSlot::OTHER));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_place_and_the_last_place_is_shared() {
        let names = LevelNames::default();
        let gold = names.slot("gold");
        assert_ne!(gold, names.slot("silver"));
        assert_eq!(gold, names.slot("gold"));
        let slots: Vec<_> = (0..300).map(|i| names.slot(&format!("level {i}"))).collect();
        assert_eq!(slots[251], LevelSlot(254));
        assert_eq!(slots[252], LevelSlot::OTHER);
        assert_eq!(names.all().len(), SLOTS);
        assert_eq!(gold, names.slot("gold"));
    }
}
