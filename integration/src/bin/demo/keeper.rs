//! Keeps the parts of the demo's node running until somebody wants it to end, and clears up.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use berth_integration::node::Node;

use crate::state::STOP;

/// Between two looks at the parts.
const PAUSE: Duration = Duration::from_millis(200);
/// Between two starts of a part that does not stay: a crash loop is to be seen, not to be felt.
const START_PAUSE: Duration = Duration::from_secs(2);
/// How often people hear what is waited for.
const TELL_EVERY: Duration = Duration::from_secs(2);
/// Grace periods of the examples and of pods that somebody added, and what comes after.
const CLEAR_LIMIT: Duration = Duration::from_secs(90);

/// Who keeps them.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    last_start: Option<Instant>,
}

impl Keeper {
    /// Starts again what has ended, until the demo is asked to end.
    pub(crate) fn keep(&mut self, node: &mut Node) -> Result<()> {
        while !Path::new(STOP).exists() {
            self.look(node)?;
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Takes the manifests away and waits until nothing of any pod is left; what that needs is kept running.
    pub(crate) fn clear(&mut self, node: &mut Node) -> Result<()> {
        node.remove_manifests()?;
        let began = Instant::now();
        let mut told = began;
        loop {
            self.look(node)?;
            let left = match node.left() {
                Ok(left) if left.is_empty() => return Ok(()),
                Ok(left) => left,
                Err(failure) => vec![format!("{failure:#}")],
            };
            if began.elapsed() > CLEAR_LIMIT {
                bail!("after {} s there is still:\n  {}", CLEAR_LIMIT.as_secs(), left.join("\n  "));
            }
            if told.elapsed() > TELL_EVERY {
                // A pod is shown with its whole status.
                let names: Vec<&str> = left.iter().filter_map(|line| line.split(" {").next()).collect();
                println!("  waiting for {}", names.join(", "));
                told = Instant::now();
            }
            thread::sleep(PAUSE);
        }
    }

    fn look(&mut self, node: &mut Node) -> Result<()> {
        if self.last_start.is_some_and(|start| start.elapsed() < START_PAUSE) {
            return Ok(());
        }
        if let Some(registry) = &mut node.registry
            && registry.ended()?
        {
            self.start("the registry", || registry.start_again());
        }
        if node.containerd.ended()? {
            self.start("containerd", || node.containerd.start_again());
        }
        if node.agent.ended()? {
            self.start("the agent", || node.agent.start());
        }
        Ok(())
    }

    fn start(&mut self, part: &str, start: impl FnOnce() -> Result<()>) {
        println!("{part} has ended: starting it again, as an init system would");
        if let Err(failure) = start() {
            println!("{part} did not start: {failure:#}");
        }
        self.last_start = Some(Instant::now());
    }
}
