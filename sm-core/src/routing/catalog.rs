//! The routing engines that there are, by the names that `routing_engine` takes.

use super::{Dfsssp, Dor, Engine, FTree, FromFile, Lash, MinHop, Nue, Sssp, Torus2Qos, UpDown};

/// All engines, in the order in which OpenSM's manual tells of them.
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
        Box::new(FromFile),
    ]
}

/// The engine of this name, in whatever case.
pub fn find(name: &str) -> Option<Box<dyn Engine>> {
    all().into_iter().find(|engine| engine.name().eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_found_by_their_own_names() {
        let names: Vec<_> = all().iter().map(|engine| engine.name()).collect();
        for name in &names {
            assert_eq!(find(&name.to_uppercase()).unwrap().name(), *name);
        }
        let mut once = names.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), names.len());
        assert!(find("none").is_none());
    }
}
