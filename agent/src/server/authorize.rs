//! What somebody may. Source: `plugin/pkg/authorizer/webhook/webhook.go` of `k8s.io/apiserver`.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use berth_core::server::{self, Attributes, Verdict};

use super::{
    authenticate::USER_MAX,
    connection::Asker,
    review::{Flights, ReviewError, Reviewer},
};
use crate::clock;

/// Answers that are kept, of those by which somebody may and of the others: a few for everybody who asks a node.
pub(super) const KEPT_MAX: usize = 1024;

/// Who decides.
#[derive(Debug)]
pub(super) enum Authorizer {
    /// Nobody: everything is allowed to those who are known.
    AlwaysAllow,
    /// The API server.
    Webhook(Access),
}

impl Authorizer {
    /// Decides one question.
    ///
    /// # Errors
    /// Nobody could say.
    pub(super) async fn verdict(&self, asked: &Attributes, asker: Asker) -> Result<Verdict, ReviewError> {
        match self {
            Self::AlwaysAllow => Ok(Verdict::Allowed),
            Self::Webhook(access) => access.verdict(asked, asker).await,
        }
    }
}

/// Asks the API server, and keeps what it says.
#[derive(Debug)]
pub(super) struct Access {
    /// `None` where the node has none: then nothing is allowed.
    pub(super) reviewer: Option<Reviewer>,
    /// The node's name.
    pub(super) node: Arc<str>,
    /// How long what is allowed is kept.
    pub(super) allowed: Duration,
    /// How long what is not.
    pub(super) denied: Duration,
    /// What is kept.
    pub(super) kept: Kept,
}

/// What is kept, and what is being asked.
#[derive(Debug)]
pub(super) struct Kept {
    answers: Arc<Mutex<server::Kept<Attributes, Verdict>>>,
    flights: Arc<Flights<Attributes, Result<Verdict, ReviewError>>>,
}

impl Default for Kept {
    fn default() -> Self {
        Self { answers: Arc::new(Mutex::new(server::Kept::new(KEPT_MAX))), flights: Arc::default() }
    }
}

impl Access {
    pub(super) async fn verdict(&self, asked: &Attributes, asker: Asker) -> Result<Verdict, ReviewError> {
        let known = {
            let mut answers = self.kept.answers.lock().unwrap_or_else(PoisonError::into_inner);
            answers.get(asked, clock::mono())
        };
        if let Some(known) = known {
            return Ok(known);
        }
        let reviewer = self.reviewer.clone().ok_or(ReviewError::Nobody)?;
        let (main, answers, node) =
            (reviewer.main().clone(), Arc::clone(&self.kept.answers), Arc::clone(&self.node));
        let (allowed, denied, question) = (self.allowed, self.denied, asked.clone());
        let asking = async move {
            let verdict = reviewer.access(&node, &question, asker).await?;
            if question.user.size() <= USER_MAX {
                let (mut answers, now) =
                    (answers.lock().unwrap_or_else(PoisonError::into_inner), clock::mono());
                match verdict {
                    Verdict::Allowed => answers.keep_good(question, verdict, allowed, now),
                    Verdict::Denied => answers.keep_bad(question, verdict, denied, now),
                }
            }
            Ok(verdict)
        };
        let answer = self.kept.flights.join(asked.clone(), &main, asking).await;
        answer.unwrap_or(Err(ReviewError::Stopping))
    }
}

#[cfg(test)]
impl Access {
    /// What is still kept of an answer when so much time has gone by.
    pub(super) fn keeps(&self, asked: &Attributes, after: Duration) -> Option<Verdict> {
        self.kept.answers.lock().unwrap().get(asked, clock::mono() + after)
    }
}
