//! Events of the node: in the log, and at the API server where there is one.

use berth_core::cluster::node::Note;

use crate::cluster::Recorder;

/// Where they are told.
#[derive(Debug, Clone)]
pub struct Notes {
    node: String,
    recorder: Option<Recorder>,
}

impl Notes {
    /// Those of the node of this name.
    #[must_use]
    pub fn of(node: &str, recorder: Option<Recorder>) -> Self {
        Self { node: node.to_owned(), recorder }
    }

    /// Tells one.
    pub fn tell(&self, note: Note) {
        tracing::info!(reason = note.reason, message = note.message, "node event");
        if let Some(recorder) = &self.recorder {
            recorder.node(&self.node, note);
        }
    }
}
