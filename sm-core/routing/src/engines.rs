//! Lists the routing engines by the names that `routing_engine` accepts, and the settings of their
//! own. There are no other such lists.

pub mod dfsssp;
pub mod dla;
pub mod dor;
mod engine;
pub mod file;
pub mod ftree;
mod hops;
pub mod lash;
pub mod layers;
pub mod minhop;
pub mod nue;
pub mod settings;
mod shortest;
pub mod sssp;
pub mod torus;
pub mod updn;

pub use self::dfsssp::Dfsssp;
pub use self::dla::Dla;
pub use self::dor::Dor;
pub use self::engine::Engine;
pub use self::file::FromFile;
pub use self::ftree::FTree;
pub use self::lash::Lash;
pub use self::layers::LayeredPaths;
pub use self::minhop::MinHop;
pub use self::nue::Nue;
pub use self::sssp::Sssp;
pub use self::torus::Torus2Qos;
pub use self::updn::UpDown;

use crate::CommonOptions;

/// The word in `routing_engine` that disables the [`fallback`] engine.
pub const NO_FALLBACK: &str = "no_fallback";

/// Returns all engines, in the order of OpenSM's manual.
pub fn all() -> Vec<Box<dyn Engine>> {
    vec![
        Box::new(MinHop),
        Box::new(UpDown::FromRoots),
        Box::new(UpDown::FromHosts),
        Box::new(FTree),
        Box::new(Lash),
        Box::new(Dor),
        Box::new(Torus2Qos),
        Box::new(Sssp),
        Box::new(Dfsssp),
        Box::new(Nue),
        Box::new(LayeredPaths),
        Box::new(Dla),
        Box::new(FromFile),
    ]
}

settings::engine_settings! {
    /// Settings of `updn` and `ftree`, which rank switches alike.
    updn,
    /// Settings of `ftree` alone.
    ftree,
    /// Settings of `lash`.
    lash,
    /// Settings of `nue`.
    nue,
    /// Settings of `layers`.
    layers,
}

/// The operator's options: those that engines share, the settings of single engines, and the
/// contents of files for single engines, in a topology's numbers. The default is that of OpenSM
/// without options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steering {
    /// Options that do not belong to one engine.
    pub common: CommonOptions,
    /// Settings of single engines.
    pub settings: EngineSettings,
    /// Files of `updn` and `ftree`.
    pub updn: updn::Options,
    /// Files of `torus-2QoS`.
    pub torus: torus::Options,
    /// Files of `file`.
    pub file: file::Options,
}

impl From<CommonOptions> for Steering {
    /// Common options, without options of a single engine.
    fn from(common: CommonOptions) -> Self {
        Self { common, ..Self::default() }
    }
}

/// Returns the names of all engines.
pub fn names() -> impl Iterator<Item = &'static str> {
    all().into_iter().map(|engine| engine.name())
}

/// Returns the engine that routes if none listed in `routing_engine` can, unless [`NO_FALLBACK`] is
/// listed.
pub fn fallback() -> Box<dyn Engine> {
    Box::new(MinHop)
}

/// Reports whether a word is valid in `routing_engine`: an engine's name or [`NO_FALLBACK`].
pub fn is_word(word: &str) -> bool {
    word.eq_ignore_ascii_case(NO_FALLBACK) || find(word).is_some()
}

/// Finds an engine by name, ignoring case.
pub fn find(name: &str) -> Option<Box<dyn Engine>> {
    all().into_iter().find(|engine| engine.name().eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_found_by_their_own_names() {
        let names: Vec<_> = names().collect();
        for name in &names {
            assert_eq!(find(&name.to_uppercase()).unwrap().name(), *name);
        }
        let mut once = names.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), names.len());
        assert!(find("none").is_none() && !is_word("none") && is_word("No_Fallback"));
    }
}
