//! What proves who the node is and changes: tokens in files, and what plugins say.
//!
//! A file is read again after a minute, a plugin run again when what it said has ended, and both when the server has refused
//! (`NewCachedFileTokenSource` of `k8s.io/client-go/transport/token_source.go`, `exec.go` of client-go).

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use berth_core::time::doubled;
use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use http::HeaderValue;
use jiff::Timestamp;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use super::exec::Plugin;
use crate::{causes::with_causes, one_thread::OneThread};

/// How often a file is read: a minute, and somewhat before that.
const FILE_EVERY: Duration = Duration::from_secs(50);
/// How long what a server refuses is not asked for anew: it may refuse whatever it gets.
const REFUSED_PAUSE: Duration = Duration::from_secs(5);
/// Pauses after failures: the first one, and the longest.
const AGAIN_MIN: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_secs(30);
/// How long a token in a file may be: longer than any header that a server takes.
const TOKEN_MAX: u64 = 64 << 10;
/// How long a file may take to be read. The token of before is used meanwhile, if there is one.
const FILE_WITHIN: Duration = Duration::from_secs(10);

/// A client certificate and its key, in PEM form.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    pub(super) certificates: String,
    pub(super) key: SecretString,
    /// Another one, or none, has taken its place: connections with it end.
    pub(super) ended: CancellationToken,
}

impl Identity {
    pub(super) fn new(certificates: String, key: SecretString) -> Self {
        Self { certificates, key, ended: CancellationToken::new() }
    }

    fn is(&self, other: &Self) -> bool {
        self.certificates == other.certificates && self.key.expose_secret() == other.key.expose_secret()
    }
}

/// What proves who the node is.
#[derive(Debug, Clone)]
pub(super) struct Credential {
    pub(super) token: Option<SecretString>,
    pub(super) identity: Option<Identity>,
    /// When it ends; `None` is when the server says so.
    pub(super) until: Option<Timestamp>,
}

impl Credential {
    /// The header of a request.
    pub(super) fn header(&self) -> Result<Option<HeaderValue>, String> {
        let Some(token) = &self.token else { return Ok(None) };
        let value = HeaderValue::try_from(format!("Bearer {}", token.expose_secret()));
        let mut value =
            value.map_err(|_not_one| "the token has characters that no header can have".to_owned())?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

/// Where it comes from.
#[derive(Debug)]
pub(super) enum Source {
    /// A file with a token.
    File(TokenFile),
    /// A program.
    Plugin(Plugin),
}

/// A file with a token, and the token beside it, which counts until the file was read.
#[derive(Debug)]
pub(super) struct TokenFile {
    path: PathBuf,
    beside: Option<SecretString>,
    /// The thread that reads it.
    reader: OneThread,
}

impl TokenFile {
    pub(super) fn new(path: PathBuf, beside: Option<SecretString>) -> Self {
        Self { path, beside, reader: OneThread::default() }
    }
}

/// How long what came of a source is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeps {
    /// [`FILE_EVERY`], and on while there is nothing new.
    ForAWhile,
    /// Until the time that it says.
    UntilItEnds,
}

type Answer = Result<Arc<Credential>, String>;

/// The credential of now, whoever asks.
pub(super) struct Credentials {
    source: Source,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: Option<(Arc<Credential>, Instant)>,
    /// What is used as long as nothing has come of a file.
    beside: Option<Arc<Credential>>,
    /// The certificate that was there last, whatever came of attempts since.
    identity: Option<Identity>,
    is_refused: bool,
    failures: u32,
    /// Until when nothing is tried, and why.
    failed: Option<(Instant, String)>,
    /// The attempt that everybody waits for.
    running: Option<Shared<BoxFuture<'static, Answer>>>,
}

impl Credentials {
    pub(super) fn of(source: Source) -> Arc<Self> {
        let beside = match &source {
            Source::File(file) => file.beside.clone(),
            Source::Plugin(_) => None,
        };
        let beside = beside.map(|token| Credential { token: Some(token), identity: None, until: None });
        let state = State { beside: beside.map(Arc::new), ..State::default() };
        Arc::new(Self { source, state: Mutex::new(state) })
    }

    /// The one of now. Those who ask at once wait for the same attempt, which goes on when they no longer wait.
    pub(super) async fn now(self: &Arc<Self>) -> Answer {
        let running = {
            let mut state = self.lock();
            if let Some(answer) = state.known(self.source.keeps(), Instant::now()) {
                return answer;
            }
            state.running.get_or_insert_with(|| Self::begin(self)).clone()
        };
        running.await
    }

    /// Tells that the server did not take this one.
    pub(super) fn refused(&self, used: &Arc<Credential>) {
        self.lock().refuse(used, Instant::now());
    }

    fn begin(this: &Arc<Self>) -> Shared<BoxFuture<'static, Answer>> {
        let this = Arc::clone(this);
        let task = tokio::spawn(async move {
            let got = this.source.get().await;
            this.lock().take(got, this.source.keeps(), Instant::now())
        });
        let ended = |_stopping| Err("the agent is stopping".to_owned());
        async move { task.await.unwrap_or_else(ended) }.boxed().shared()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// What needs no attempt.
    fn known(&self, keeps: Keeps, now: Instant) -> Option<Answer> {
        if let Some((credential, taken)) = self.last.as_ref().filter(|_| !self.is_refused) {
            let holds = match keeps {
                Keeps::ForAWhile => now.duration_since(*taken) < FILE_EVERY,
                Keeps::UntilItEnds => credential.until.is_none_or(|until| Timestamp::now() < until),
            };
            if holds {
                return Some(Ok(Arc::clone(credential)));
            }
        }
        let waits = self.failed.as_ref().filter(|(until, _)| now < *until);
        waits.map(|(_, why)| Err(why.clone()))
    }

    fn refuse(&mut self, used: &Arc<Credential>, now: Instant) {
        let last = self.last.as_ref();
        self.is_refused |= last.is_some_and(|(last, taken)| {
            Arc::ptr_eq(last, used) && now.duration_since(*taken) >= REFUSED_PAUSE
        });
    }

    /// Takes what came of an attempt. A file that cannot be read leaves the token that it had, or the one beside it.
    fn take(&mut self, got: Result<Credential, String>, keeps: Keeps, now: Instant) -> Answer {
        self.running = None;
        self.is_refused = false;
        let why = match got {
            Ok(Credential { token, identity, until }) => {
                let identity = self.certify(identity);
                let credential = Arc::new(Credential { token, identity, until });
                self.last = Some((Arc::clone(&credential), now));
                (self.failures, self.failed) = (0, None);
                return Ok(credential);
            }
            Err(why) => why,
        };
        tracing::warn!(why, "there is nothing new that says who the node is");
        let last = self.last.take().map(|(credential, _)| credential);
        if keeps == Keeps::ForAWhile
            && let Some(credential) = last.or_else(|| self.beside.clone())
        {
            self.last = Some((Arc::clone(&credential), now));
            return Ok(credential);
        }
        self.failures = self.failures.saturating_add(1);
        let pause = doubled(AGAIN_MIN, self.failures - 1, AGAIN_MAX);
        self.failed = Some((now + pause, why.clone()));
        Err(why)
    }

    /// The certificate of now. The same one that is printed again goes on; another one ends the one before, with all connections and the
    /// watches on them (`refreshCredsLocked` of `exec.go`).
    fn certify(&mut self, printed: Option<Identity>) -> Option<Identity> {
        let goes_on = match (&self.identity, &printed) {
            (Some(before), Some(printed)) => before.is(printed),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if !goes_on && let Some(before) = std::mem::replace(&mut self.identity, printed) {
            tracing::info!("the plugin prints another certificate: connections with the one before are cut");
            before.ended.cancel();
        }
        self.identity.clone()
    }
}

impl Source {
    fn keeps(&self) -> Keeps {
        match self {
            Self::File(_) => Keeps::ForAWhile,
            Self::Plugin(_) => Keeps::UntilItEnds,
        }
    }

    async fn get(&self) -> Result<Credential, String> {
        match self {
            Self::File(TokenFile { path, reader, .. }) => {
                let failed =
                    |why: &dyn std::fmt::Display| format!("read the token file {}: {why}", path.display());
                let file = path.clone();
                let read = reader.run(FILE_WITHIN, move || token(&file)).await;
                let token = read.map_err(|silent| failed(&silent))?.map_err(|error| failed(&error))?;
                Ok(Credential { token: Some(token), identity: None, until: None })
            }
            Self::Plugin(plugin) => plugin.run().await.map_err(|error| with_causes(&error)),
        }
    }
}

/// The token in a file.
fn token(path: &Path) -> io::Result<SecretString> {
    let mut text = Zeroizing::new(String::new());
    File::open(path)?.take(TOKEN_MAX + 1).read_to_string(&mut text)?;
    let token = text.trim();
    if token.is_empty() || text.len() as u64 > TOKEN_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it has no token"));
    }
    Ok(SecretString::from(token))
}

#[cfg(test)]
mod tests;
