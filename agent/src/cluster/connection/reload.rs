//! A kubeconfig, and the certificates that it names, are read again when they have changed.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use kube::config::Kubeconfig;
use sha2::{Digest as _, Sha256};

use super::ConnectError;
use crate::{causes::with_causes, cluster::Clients};

/// How often files are looked at. Whoever changes certificates does so long before the old ones end.
const EVERY: Duration = Duration::from_secs(10);
/// What is read of a file: more than any certificate or kubeconfig has.
const BYTES_MAX: u64 = 4 << 20;

/// What files hold.
type Content = [u8; 32];

/// Has the clients replaced by what `connect` makes whenever the kubeconfig, or a file that it names, has changed; files that
/// are `known` to change otherwise are left out. What is read wrong leaves the client that there is. Runs until the agent stops.
pub(in crate::cluster) async fn follow<F>(
    clients: &Clients,
    kubeconfig: &Path,
    known: &Path,
    connect: impl Fn() -> F,
) where
    F: Future<Output = Result<kube::Client, ConnectError>>,
{
    follow_every(EVERY, clients, kubeconfig, known, connect).await;
}

pub(super) async fn follow_every<F>(
    every: Duration,
    clients: &Clients,
    kubeconfig: &Path,
    known: &Path,
    connect: impl Fn() -> F,
) where
    F: Future<Output = Result<kube::Client, ConnectError>>,
{
    // What the client of now was made from, and what no client could be made from.
    let (mut used, mut refused) = (None, None);
    loop {
        let (path, without) = (kubeconfig.to_owned(), known.to_owned());
        let looked = tokio::task::spawn_blocking(move || content(&path, &without)).await;
        if let Ok(Ok(now)) = looked
            && used != Some(now)
            && refused != Some(now)
        {
            let client = if used.is_some() { connect().await.map(Some) } else { Ok(None) };
            match client {
                Ok(client) => {
                    if let Some(client) = client {
                        tracing::info!(path = %kubeconfig.display(), "the kubeconfig, or what it names, has changed");
                        clients.replace(client);
                    }
                    (used, refused) = (Some(now), None);
                }
                Err(error) => {
                    tracing::error!(error = with_causes(&error), "the client that there is stays");
                    refused = Some(now);
                }
            }
        }
        tokio::time::sleep(every).await;
    }
}

/// What the kubeconfig and the files that it names hold.
fn content(kubeconfig: &Path, known: &Path) -> io::Result<Content> {
    let mut sum = Sha256::new();
    add(&mut sum, kubeconfig)?;
    let named = Kubeconfig::read_from(kubeconfig).map_err(io::Error::other)?;
    let authorities =
        named.clusters.iter().filter_map(|one| one.cluster.as_ref()?.certificate_authority.as_ref());
    let users = named.auth_infos.iter().filter_map(|one| one.auth_info.as_ref());
    let pairs = users.flat_map(|user| [user.client_certificate.as_ref(), user.client_key.as_ref()]);
    let files = authorities.chain(pairs.flatten()).map(PathBuf::from).filter(|path| path != known);
    for file in files {
        // One that is being replaced may be missing for a moment.
        if add(&mut sum, &file).is_err() {
            sum.update("missing");
        }
    }
    Ok(sum.finalize().into())
}

fn add(sum: &mut Sha256, path: &Path) -> io::Result<()> {
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(fs::File::open(path)?, BYTES_MAX), &mut bytes)?;
    sum.update(bytes.len().to_le_bytes());
    sum.update(bytes);
    Ok(())
}
