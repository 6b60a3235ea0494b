//! A program that says accounts. Source: `pkg/credentialprovider/plugin/plugin.go`.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::{
    causes::with_causes,
    config::{CredentialProvider, GoDuration},
    objects::{Credential, Keyring, is_for},
    program::Program,
};

/// How long a provider may take.
const WITHIN: Duration = Duration::from_secs(60);
/// Answers that are kept; one more, and those that have ended go, or all.
const ANSWERS_MAX: usize = 1000;

type Answer = Arc<Vec<(String, Credential)>>;

/// A provider and its answers.
pub(super) struct Provider {
    settings: CredentialProvider,
    program: Program,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By image, registry, or the empty name for all, and until when.
    kept: BTreeMap<String, (Answer, Instant)>,
    /// Runs that go on, by image.
    running: BTreeMap<String, Shared<BoxFuture<'static, Option<Answer>>>>,
}

impl std::fmt::Debug for Provider {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Provider").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// `CredentialProviderResponse`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    kind: String,
    api_version: String,
    cache_key_type: String,
    #[serde(default)]
    cache_duration: Option<GoDuration>,
    #[serde(default)]
    auth: Option<BTreeMap<String, Account>>,
}

#[derive(Deserialize)]
struct Account {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

impl Provider {
    pub(super) fn of(settings: CredentialProvider) -> Self {
        let CredentialProvider { command, args, env, .. } = settings.clone();
        Self {
            settings,
            program: Program { command, args, env, ..Program::default() },
            state: Mutex::default(),
        }
    }

    /// Its accounts for a repository; those who ask at once for the same wait for one run. A provider that fails has none: the pull
    /// may work without.
    pub(super) async fn find(self: &Arc<Self>, repository: &str) -> Vec<Credential> {
        if !self.settings.images.iter().any(|image| is_for(image, repository)) {
            return Vec::new();
        }
        let running = {
            let mut state = self.lock();
            match state.known(repository, Instant::now()) {
                Some(answer) => futures::future::ready(Some(answer)).boxed().shared(),
                None => state
                    .running
                    .entry(repository.to_owned())
                    .or_insert_with(|| self.begin(repository.to_owned()))
                    .clone(),
            }
        };
        let mut keyring = Keyring::default();
        for (place, credential) in running.await.iter().flat_map(|answer| answer.iter()) {
            keyring.put(place, credential.clone());
        }
        keyring.lookup(repository)
    }

    fn begin(self: &Arc<Self>, repository: String) -> Shared<BoxFuture<'static, Option<Answer>>> {
        let this = Arc::clone(self);
        let task = tokio::spawn(async move {
            let answered = this.ask(&repository).await;
            let mut state = this.lock();
            state.running.remove(&repository);
            match answered {
                Ok((answer, place, keep)) => {
                    state.keep(place, Arc::clone(&answer), keep, Instant::now());
                    Some(answer)
                }
                Err(why) => {
                    tracing::warn!(
                        provider = this.settings.name,
                        why,
                        "a credential provider has no account"
                    );
                    None
                }
            }
        });
        async move { task.await.ok().flatten() }.boxed().shared()
    }

    /// Its accounts, what they are kept for, and how long.
    async fn ask(&self, repository: &str) -> Result<(Answer, String, Duration), String> {
        let version = &self.settings.version;
        let request =
            json!({ "apiVersion": version, "kind": "CredentialProviderRequest", "image": repository });
        let said = self.program.answer(&request.to_string(), WITHIN).await;
        let said = Zeroizing::new(said.map_err(|error| with_causes(&error))?);
        self.understood(&said, repository)
    }

    fn understood(&self, said: &str, repository: &str) -> Result<(Answer, String, Duration), String> {
        // The error may show a part of what came.
        let response: Response = serde_json::from_str(said)
            .map_err(|_secret| "what it prints is no CredentialProviderResponse".to_owned())?;
        if response.kind != "CredentialProviderResponse" || response.api_version != self.settings.version {
            return Err(format!(
                "what it prints is no CredentialProviderResponse of {}",
                self.settings.version
            ));
        }
        let place = match response.cache_key_type.as_str() {
            "Image" => repository,
            "Registry" => registry(repository),
            "Global" => "",
            _ => return Err("its cacheKeyType is none of `Image`, `Registry`, `Global`".to_owned()),
        };
        let keep = response.cache_duration.map_or(self.settings.keep, |time| time.0);
        let accounts = response.auth.unwrap_or_default().into_iter().map(|(place, account)| {
            let Account { username, password } = account;
            let (username, password) = (Zeroizing::new(username), Zeroizing::new(password));
            (place, Credential { username, password, email: Zeroizing::default() })
        });
        Ok((Arc::new(accounts.collect()), place.to_owned(), keep))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn known(&self, repository: &str, now: Instant) -> Option<Answer> {
        let places = [repository, registry(repository), ""];
        let mut kept = places.iter().filter_map(|place| self.kept.get(*place));
        kept.find(|(_, until)| now < *until).map(|(answer, _)| Arc::clone(answer))
    }

    fn keep(&mut self, place: String, answer: Answer, time: Duration, now: Instant) {
        if self.kept.len() >= ANSWERS_MAX {
            self.kept.retain(|_, (_, until)| now < *until);
        }
        if self.kept.len() >= ANSWERS_MAX {
            self.kept.clear();
        }
        // A time beyond what the clock can say is none.
        if let Some(until) = now.checked_add(time) {
            self.kept.insert(place, (answer, until));
        }
    }
}

fn registry(repository: &str) -> &str {
    repository.split('/').next().unwrap_or(repository)
}

#[cfg(test)]
mod tests;
