FROM python:3.12.12-slim-bookworm
# where pip finds torch; without it the default index, whose wheels bring CUDA
ARG TORCH_INDEX=""
RUN useradd --create-home user && mkdir /models
WORKDIR /app
# versions of all packages, by `make lock`
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY ebm_app ebm_app
RUN if [ -n "$TORCH_INDEX" ]; then \
      pip install --no-cache-dir -c constraints.txt --index-url "$TORCH_INDEX" torch torchvision; \
    fi && pip install --no-cache-dir -c constraints.txt '.[ui]'
COPY train train
COPY sample sample
COPY evaluate evaluate
COPY ui ui
USER user
WORKDIR /home/user
# runs to offer beside the bundled models
VOLUME /models
EXPOSE 7860
HEALTHCHECK --start-period=60s --timeout=10s CMD ["python", "-c", \
  "from urllib.request import *; build_opener(ProxyHandler({})).open('http://127.0.0.1:7860/')"]
ENTRYPOINT ["python"]
# needs EBM_AUTH=user:password
CMD ["/app/ui/app.py", "--host", "0.0.0.0", "--models_dir", "/models"]
