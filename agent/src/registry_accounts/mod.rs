//! Accounts at registries that the node has, for the images of every pod: in files, and from programs.

mod files;
mod provider;

use std::sync::Arc;

use futures::future::join_all;

use self::{files::Files, provider::Provider};
use crate::{config::RegistryAccounts, objects::Credential};

/// The node's accounts.
#[derive(Debug, Default)]
pub struct NodeAccounts {
    files: Files,
    providers: Vec<Arc<Provider>>,
}

impl NodeAccounts {
    /// As the configuration says.
    #[must_use]
    pub fn of(settings: &RegistryAccounts) -> Self {
        let providers = settings.providers.iter().map(|one| Arc::new(Provider::of(one.clone()))).collect();
        Self { files: Files::of(settings), providers }
    }

    /// Those for a repository, written with its registry.
    pub async fn find(&self, repository: &str) -> Vec<Credential> {
        let providers = join_all(self.providers.iter().map(|provider| provider.find(repository)));
        let (mut found, provided) = tokio::join!(self.files.find(repository), providers);
        found.extend(provided.into_iter().flatten());
        found
    }
}
