//! ibstorm, the SA load generator.
