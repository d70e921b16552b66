FROM python:3.12-slim
WORKDIR /app
COPY pyproject.toml README.md LICENSE ./
COPY ebm_app ebm_app
RUN pip install --no-cache-dir .
COPY train train
COPY sample sample
COPY evaluate evaluate
COPY ui ui
RUN useradd --create-home user
USER user
WORKDIR /home/user
ENTRYPOINT ["python"]
CMD ["/app/sample/ebm.py", "digits", "--output_dir", "samples"]
