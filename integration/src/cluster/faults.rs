//! Somebody between a node and its API server who understands what is said, and lies, fails, refuses or dawdles where a test wants it.
//!
//! It serves with the API server's own certificate, HTTP/2 and HTTP/1.1, and asks the real API server as the node whose kubeconfig it
//! was given, so rights and audit are the node's. What connections themselves do is [`Proxy`](super::proxy::Proxy)'s.

mod answer;
mod identity;
mod request;
mod serve;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::sync::{mpsc, watch};

use self::identity::Identity;
pub use self::request::Verb;
use super::Cluster;

/// Requests that are remembered, the last ones.
const ASKED_MAX: usize = 100_000;
/// Lines that wait for a watch: whoever sends more waits for its reader.
const LINES_MAX: usize = 64;

/// In a line that a test [tells](Faults::tell) to a watch: the version of what the API server told last.
pub const NOW: &str = "now";

/// Which requests.
#[derive(Debug, Clone, Default)]
pub struct Of {
    /// What is asked; anything when there is none.
    pub verbs: Vec<Verb>,
    /// What their path begins with.
    pub path: String,
}

impl Of {
    /// These, of paths that begin so.
    #[must_use]
    pub fn new(verbs: &[Verb], path: &str) -> Self {
        Self { verbs: verbs.to_vec(), path: path.to_owned() }
    }

    fn fits(&self, verb: Verb, path: &str) -> bool {
        (self.verbs.is_empty() || self.verbs.contains(&verb)) && path.starts_with(&self.path)
    }
}

/// What is done to a request.
#[derive(Debug, Clone)]
pub enum Fault {
    /// It is passed on so much later.
    Delay(Duration),
    /// It is passed on when there are [other rules](Faults::set).
    Held,
    /// It is refused with this code, and with the seconds after which it may come again.
    Refuse(u16, Option<u32>),
    /// It is passed on, and its answer breaks off after so many bytes, with its stream or connection.
    Reset(usize),
    /// It is a watch that is passed on until it has told so many events; then it tells these lines, and ends.
    Ends(usize, Vec<String>),
    /// It is answered as by a server that is behind: with this list, in either form, and with watches in which nothing happens.
    Stale(Value),
    /// It is answered with a line that has no end.
    Endless,
}

/// What is done to which requests.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Which.
    pub of: Of,
    /// What.
    pub fault: Fault,
    /// To how many of them.
    pub times: usize,
}

impl Rule {
    /// To all of them, until there are other rules.
    #[must_use]
    pub fn always(of: &Of, fault: Fault) -> Self {
        Self { of: of.clone(), fault, times: usize::MAX }
    }

    /// To the next of them.
    #[must_use]
    pub fn times(of: &Of, fault: Fault, times: usize) -> Self {
        Self { of: of.clone(), fault, times }
    }
}

/// A request that came.
#[derive(Debug, Clone)]
pub struct Asked {
    /// When.
    pub at: Instant,
    /// What was asked.
    pub verb: Verb,
    /// Path without its query.
    pub path: String,
    /// Query.
    pub query: String,
}

/// The one between. Dropping it ends its connections.
#[derive(Debug)]
pub struct Faults {
    at: SocketAddr,
    shared: Arc<Shared>,
    ended: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    identity: Identity,
    /// Tells that there are other rules.
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    rules: Vec<Rule>,
    asked: VecDeque<Asked>,
    watches: Vec<Watch>,
}

/// A watch that goes on.
#[derive(Debug, Clone)]
struct Watch {
    verb: Verb,
    path: String,
    lines: mpsc::Sender<String>,
}

impl Watch {
    /// Whether it fits, and somebody still reads it.
    fn goes_on(&self, of: &Of) -> bool {
        of.fits(self.verb, &self.path) && !self.lines.is_closed()
    }
}

impl Faults {
    /// Passes on what the node of this kubeconfig asks of a cluster.
    ///
    /// # Errors
    /// The kubeconfig has no certificate in it.
    pub fn start(cluster: &Cluster, kubeconfig: &Path) -> Result<Self> {
        let identity = Identity::of(cluster, kubeconfig)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listen for the node")?;
        listener.set_nonblocking(true)?;
        let at = listener.local_addr()?;
        let shared = Arc::new(Shared { state: Mutex::default(), identity, changed: watch::Sender::new(()) });
        let (ended, ends) = watch::channel(false);
        let of_thread = Arc::clone(&shared);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = thread::Builder::new()
            .name("faults".to_owned())
            .spawn(move || runtime.block_on(serve::run(of_thread, listener, ends)))
            .context("start the one between")?;
        Ok(Self { at, shared, ended, thread: Some(thread) })
    }

    /// Where it listens.
    #[must_use]
    pub fn at(&self) -> SocketAddr {
        self.at
    }

    /// From now on these rules hold, the first that fits each request. What was held goes on.
    pub fn set(&self, rules: &[Rule]) {
        let mut state = self.shared.lock();
        state.rules = rules.to_vec();
        self.shared.changed.send_replace(());
    }

    /// What was asked since the beginning, or since it was [forgotten](Self::forget), as far as it fits.
    #[must_use]
    pub fn asked(&self, of: &Of) -> Vec<Asked> {
        let state = self.shared.lock();
        state.asked.iter().filter(|asked| of.fits(asked.verb, &asked.path)).cloned().collect()
    }

    /// Forgets what was asked.
    pub fn forget(&self) {
        self.shared.lock().asked.clear();
    }

    /// Ends every watch that fits, as a server does after a while. Those of them that go on are given.
    pub fn end_watches(&self, of: &Of) -> usize {
        let mut state = self.shared.lock();
        let ended = state.watches.iter().filter(|watch| watch.goes_on(of)).count();
        state.watches.retain(|watch| !of.fits(watch.verb, &watch.path));
        ended
    }

    /// How many watches go on that fit.
    #[must_use]
    pub fn watches(&self, of: &Of) -> usize {
        let state = self.shared.lock();
        state.watches.iter().filter(|watch| watch.goes_on(of)).count()
    }

    /// Tells lines to every watch that fits, as fast as it is read.
    ///
    /// # Errors
    /// No watch fits, or one has ended.
    pub fn tell(&self, of: &Of, lines: impl IntoIterator<Item = String>) -> Result<()> {
        let watches = self.shared.lock().watches.clone();
        let watches: Vec<_> = watches.into_iter().filter(|watch| watch.goes_on(of)).collect();
        ensure!(!watches.is_empty(), "no watch of {of:?}");
        for line in lines {
            for watch in &watches {
                watch.lines.blocking_send(line.clone()).context("the watch has ended")?;
            }
        }
        Ok(())
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        self.ended.send_replace(true);
        if let Some(thread) = self.thread.take() {
            // It has panicked, which it has said.
            drop(thread.join());
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a request, and says what is to be done to it, and who tells of other rules than those.
    fn ask(&self, asked: Asked) -> (Option<Fault>, watch::Receiver<()>) {
        let mut state = self.lock();
        let rule =
            state.rules.iter_mut().find(|rule| rule.times > 0 && rule.of.fits(asked.verb, &asked.path));
        let fault = rule.map(|rule| {
            rule.times = rule.times.saturating_sub(usize::from(rule.times != usize::MAX));
            rule.fault.clone()
        });
        if state.asked.len() == ASKED_MAX {
            state.asked.pop_front();
        }
        state.asked.push_back(asked);
        (fault, self.changed.subscribe())
    }

    /// Takes a watch in; what is told to it comes out until it is ended.
    fn watch(&self, verb: Verb, path: &str) -> mpsc::Receiver<String> {
        let (lines, told) = mpsc::channel(LINES_MAX);
        let mut state = self.lock();
        state.watches.retain(|watch| !watch.lines.is_closed());
        state.watches.push(Watch { verb, path: path.to_owned(), lines });
        told
    }
}
