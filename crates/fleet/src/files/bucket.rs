//! Files in S3, or what speaks like it. Credentials, region and endpoint come from the usual variables: AWS_ACCESS_KEY_ID,
//! AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL and so on, or from the machine's role.

use super::place::Stored;
use anyhow::{Context, bail};
use axum::body::Bytes;
use futures_util::TryStreamExt;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, RetryConfig, WriteMultipart};
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// S3 takes none below 5 MiB, but the last.
const PART: usize = 8 << 20;
const PARTS_AT_ONCE: usize = 2;
/// Of a file that is read, one request.
const READ_AT_ONCE: u64 = 1 << 20;
/// A node waits for its answer.
const RETRIES: usize = 2;
const RETRIES_WITHIN: Duration = Duration::from_secs(10);

/// Used from threads that may block.
#[derive(Debug, Clone)]
pub struct Bucket {
    store: Arc<AmazonS3>,
    prefix: Path,
    runtime: Handle,
}

impl Bucket {
    /// `BUCKET/PREFIX`
    pub fn open(name: &str) -> anyhow::Result<Bucket> {
        let (bucket, prefix) = name.split_once('/').unwrap_or((name, ""));
        if bucket.is_empty() {
            bail!("--files s3://{name}: expected s3://BUCKET/PREFIX");
        }
        // Ring alone is linked; nobody else may have installed a provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let endpoint = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]
            .into_iter()
            .find_map(|name| std::env::var(name).ok());
        let is_plain = endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
        let retry = RetryConfig { max_retries: RETRIES, retry_timeout: RETRIES_WITHIN, ..RetryConfig::default() };
        let store = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry);
        let store = if is_plain { store.with_allow_http(true) } else { store };
        let prefix = Path::parse(prefix.trim_matches('/')).with_context(|| format!("--files s3://{name}"))?;
        let store = store.build().with_context(|| format!("--files s3://{name}"))?;
        Ok(Bucket { store: Arc::new(store), prefix, runtime: Handle::current() })
    }

    fn path(&self, name: &str) -> Path {
        name.split('/').fold(self.prefix.clone(), |path, part| path.join(part))
    }

    pub fn store(&self, name: &str, from: &std::path::Path) -> anyhow::Result<()> {
        let mut file = std::fs::File::open(from).with_context(|| format!("cannot read {}", from.display()))?;
        let path = self.path(name);
        let stored = self.runtime.block_on(async {
            let mut upload = WriteMultipart::new_with_chunk_size(self.store.put_multipart(&path).await?, PART);
            let mut buffer = vec![0; READ_AT_ONCE as usize];
            loop {
                match file.read(&mut buffer) {
                    Ok(0) => return upload.finish().await.map(drop).map_err(anyhow::Error::from),
                    Ok(read) => {
                        upload.wait_for_capacity(PARTS_AT_ONCE).await?;
                        upload.write(&buffer[..read]);
                    }
                    Err(error) => {
                        let _ = upload.abort().await;
                        return Err(error.into());
                    }
                }
            }
        });
        stored.with_context(|| format!("cannot store {path} in the bucket"))
    }

    /// Those whose names begin with a directory.
    pub fn listed(&self, below: Option<&str>) -> anyhow::Result<Vec<Stored>> {
        let under = below.map_or_else(|| self.prefix.clone(), |below| self.path(below));
        let listed = self.runtime.block_on(async { self.store.list(Some(&under)).try_collect::<Vec<_>>().await });
        let objects = listed.with_context(|| format!("cannot list {under} in the bucket"))?;
        let stored = objects.into_iter().filter_map(|object| {
            let parts: Vec<String> =
                object.location.prefix_match(&self.prefix)?.map(|part| part.as_ref().to_owned()).collect();
            Stored::named(&parts.join("/"), object.size, object.last_modified.into())
        });
        Ok(stored.collect())
    }

    pub fn reader(&self, stored: &Stored) -> BucketFile {
        BucketFile {
            bucket: self.clone(),
            path: self.path(stored.name()),
            size: stored.bytes,
            at: 0,
            piece: Bytes::new(),
        }
    }

    pub fn remove(&self, stored: &Stored) -> anyhow::Result<()> {
        let path = self.path(stored.name());
        match self.runtime.block_on(self.store.delete(&path)) {
            Err(error) if !matches!(error, object_store::Error::NotFound { .. }) => {
                Err(error).with_context(|| format!("cannot remove {path} from the bucket"))
            }
            _ => Ok(()),
        }
    }
}

/// Read piece by piece.
pub struct BucketFile {
    bucket: Bucket,
    path: Path,
    size: u64,
    /// After what was read from the bucket.
    at: u64,
    /// What is left of it.
    piece: Bytes,
}

impl Read for BucketFile {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.piece.is_empty() && self.at < self.size {
            let end = self.size.min(self.at + READ_AT_ONCE);
            let read = self.bucket.runtime.block_on(self.bucket.store.get_range(&self.path, self.at..end));
            self.piece = read.map_err(io::Error::other)?;
            self.at = end;
        }
        let count = to.len().min(self.piece.len());
        to[..count].copy_from_slice(&self.piece.split_to(count));
        Ok(count)
    }
}
