//! Bytes that nobody is to see: they show nothing of themselves, and are overwritten when nobody has them any more.

use std::{fmt, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use zeroize::Zeroizing;

/// What is in an object of the API server. Clones share it. On a worker's connection it is base64.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Hidden(Arc<Zeroizing<Vec<u8>>>);

impl Hidden {
    /// Hides these bytes.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Zeroizing::new(bytes)))
    }

    /// The bytes, for whoever they are meant for.
    #[must_use]
    pub fn reveal(&self) -> &[u8] {
        &self.0
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "({} bytes)", self.0.len())
    }
}

impl Serialize for Hidden {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&Zeroizing::new(STANDARD.encode(self.reveal())))
    }
}

impl<'de> Deserialize<'de> for Hidden {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Zeroizing::new(String::deserialize(deserializer)?);
        STANDARD.decode(text.as_bytes()).map(Self::new).map_err(|_error| D::Error::custom("not base64"))
    }
}

/// Has the kernel write no image of this process when it crashes, whatever the limits say: secrets are in its memory.
/// Processes that it starts are as they were, since the next program of a process begins without this.
pub fn keep_out_of_core_dumps() {
    // Fails only for a value that is none.
    if let Err(errno) = nix::sys::prctl::set_dumpable(false) {
        tracing::warn!(%errno, "a crash may leave secrets in a core dump");
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn bytes_are_told_on_the_wire_and_nowhere_else() {
        let hidden = Hidden::new(b"canary\0\xff".to_vec());
        assert_eq!(format!("{hidden:?} {hidden:#?}"), "(8 bytes) (8 bytes)");
        let text = serde_json::to_string(&hidden).unwrap();
        assert_eq!(serde_json::from_str::<Hidden>(&text).unwrap(), hidden);
        let error = serde_json::from_str::<Hidden>("\"can%ary\"").unwrap_err();
        assert!(!error.to_string().contains("can%ary"), "{error}");
    }

    #[test]
    fn this_process_leaves_no_core_dump_and_its_children_may() {
        let limit = |process: &str| {
            let limits = std::fs::read_to_string(format!("/proc/{process}/limits")).unwrap();
            limits.lines().find(|line| line.starts_with("Max core file size")).map(str::to_owned)
        };
        let before = limit("self");
        keep_out_of_core_dumps();
        assert!(!nix::sys::prctl::get_dumpable().unwrap());
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert_eq!((limit("self"), limit(&child.id().to_string())), (before.clone(), before));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
