//! Inputs that are kept.

use std::fs;
use std::path::Path;

use crate::random::Random;

/// The inputs of one kind, each in a file of `fuzz/corpus/<kind>`, by name.
#[derive(Debug, Clone)]
pub struct Corpus(Vec<(String, Vec<u8>)>);

impl Corpus {
    /// Reads the inputs of a kind. Panics when there are none, since a test would then show nothing.
    pub fn load(kind: &str) -> Corpus {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(kind);
        let entries = fs::read_dir(&dir).map(|entries| entries.flatten().collect::<Vec<_>>());
        let mut inputs: Vec<(String, Vec<u8>)> = entries
            .unwrap_or_default()
            .into_iter()
            .filter_map(|entry| Some((entry.file_name().into_string().ok()?, fs::read(entry.path()).ok()?)))
            .collect();
        assert!(!inputs.is_empty(), "there is no corpus in {}", dir.display());
        inputs.sort();
        Corpus(inputs)
    }

    /// Every input and its name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().map(|(name, input)| (name.as_str(), input.as_slice()))
    }

    /// One of the inputs.
    pub fn pick(&self, random: &mut Random) -> &[u8] {
        &random.pick(&self.0).1
    }
}
