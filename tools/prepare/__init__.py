"""./tandem prepare: any instruction, chat or text data as a file of token ids that training maps into memory.

  files.py, json_stream.py, tables.py, megatron.py   a name -> files -> records, one at a time
  formats.py                                         a record -> a sample: text, chat or ids
  template.py, masks.py, encoder.py                  samples -> ids, and which of them are learnt
  mixture.py                                         several data sets as one
  token_file.py                                      the only place that writes a token file
  command.py                                         the flags, and the order of all this
  for_training.py                                    the same before `./tandem train`, into the cache

docs/data.md says what each of them accepts.
"""
