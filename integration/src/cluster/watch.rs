//! A watch of the API server by `kubectl`, which notes when each change was seen.

use std::io::{BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Deserializer, Value};

use super::Client;
use crate::components;

/// Changes that nobody has taken yet: more than the largest measurement makes. What comes beyond them waits in kubectl.
const CHANGES_MAX: usize = 100_000;

/// A change, and when it was seen.
#[derive(Debug, Clone)]
pub struct Seen {
    /// When.
    pub at: SystemTime,
    /// Whether the object is gone.
    pub gone: bool,
    /// The object, as it was when it went.
    pub object: Value,
}

impl Seen {
    /// The object's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// Whether it is a pod with this condition.
    #[must_use]
    pub fn is(&self, condition: &str) -> bool {
        let all = self.object["status"]["conditions"].as_array();
        all.is_some_and(|all| all.iter().any(|one| one["type"] == condition && one["status"] == "True"))
    }
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

/// A watch that goes on. Dropping it ends it.
#[derive(Debug)]
pub struct Watch {
    child: Child,
    changes: Receiver<Seen>,
}

impl Watch {
    /// Watches all objects of a kind in a namespace, such as `pods`: first those that there are.
    ///
    /// # Errors
    /// kubectl is missing.
    pub fn start(client: &Client, kind: &str, namespace: &str) -> Result<Self> {
        let mut child = Command::new(components::binary("kubectl")?)
            .arg("--kubeconfig")
            .arg(client.kubeconfig())
            .args([
                "get",
                kind,
                "--namespace",
                namespace,
                "--watch",
                "--output-watch-events",
                "--output",
                "json",
            ])
            .env("HOME", client.home())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("start kubectl")?;
        let output = child.stdout.take().context("kubectl has no output")?;
        let (sender, changes) = mpsc::sync_channel(CHANGES_MAX);
        thread::Builder::new().name("watch".to_owned()).spawn(move || read(output, &sender))?;
        Ok(Self { child, changes })
    }

    /// Waits until a change is what is wanted.
    ///
    /// # Errors
    /// None was in time, or the watch ended.
    pub fn until<T>(
        &self,
        what: &str,
        limit: Duration,
        mut wanted: impl FnMut(Seen) -> Option<T>,
    ) -> Result<T> {
        let begun = Instant::now();
        loop {
            match self.changes.recv_timeout(limit.saturating_sub(begun.elapsed())) {
                Ok(seen) => {
                    if let Some(found) = wanted(seen) {
                        return Ok(found);
                    }
                }
                Err(RecvTimeoutError::Timeout) => bail!("{what}: not seen within {limit:?}"),
                Err(RecvTimeoutError::Disconnected) => bail!("{what}: the watch has ended"),
            }
        }
    }
}

fn read(output: impl Read, sender: &SyncSender<Seen>) {
    for event in Deserializer::from_reader(BufReader::new(output)).into_iter::<Event>() {
        let at = SystemTime::now();
        // Who waits is told of an end; what kubectl says of it is in the test's output.
        let Ok(Event { kind, object }) = event else { return };
        if sender.send(Seen { at, gone: kind == "DELETED", object }).is_err() {
            return;
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Both fail only for one that ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
