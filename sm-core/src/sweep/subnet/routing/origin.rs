//! Which engine computed the routing in force, so that the next run knows it.

use std::fmt::Write as _;

/// The engine that computed the tables in force, saved for the next run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Name of the engine.
    pub engine: String,
    /// Hash of the operators' options.
    pub options_hash: u64,
}

impl Origin {
    /// Reads what [`render`](Self::render) wrote.
    pub fn parse(text: &str) -> Option<Self> {
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
            line.map(str::trim)
        };
        let options_hash = u64::from_str_radix(value("wishes")?.strip_prefix("0x")?, 16).ok()?;
        Some(Self { engine: value("engine")?.to_owned(), options_hash })
    }

    /// As lines of a file.
    pub fn render(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(text, "engine {}\nwishes {:#x}", self.engine, self.options_hash);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_reads_back_and_what_is_none_is_not_taken_for_one() {
        let origin = Origin { engine: "torus-2QoS".into(), options_hash: u64::MAX };
        assert_eq!(Origin::parse(&origin.render()), Some(origin));
        for text in ["", "engine ftree\n", "engine ftree\nwishes 12\n", "wishes 0x1\n"] {
            assert_eq!(Origin::parse(text), None, "{text:?}");
        }
    }
}
