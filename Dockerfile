# An image that runs every command of resjax:
#   docker build --build-arg=EXTRAS=tpu,tensorboard,wandb --tag=IMAGE CLONE
# EXTRAS are extras of setup.cfg: `tpu` for TPUs (the default), `cuda,gcs` for NVIDIA GPUs.
# CLONE is a fresh `git clone`; a checkout's data and environments are left out by .dockerignore.
FROM python:3.13-slim
ARG EXTRAS=tpu,tensorboard,wandb
WORKDIR /resjax
COPY . .
RUN pip install --no-cache-dir --editable ".[${EXTRAS}]"
RUN JAX_PLATFORMS=cpu resjax train --config=tiny --dry_run > /dev/null
ENV PYTHONUNBUFFERED=1
CMD ["resjax", "--help"]
