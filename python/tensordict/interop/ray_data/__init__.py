"""Datasets of Ray Data: of collections, of saves that workers read, and back.

``blocks.py`` makes the blocks of a dataset, tables of Arrow, of rows of a collection;
``describing.py`` says what they will be without reading; ``reading.py`` has the tasks that
read rows of a save; ``datasets.py`` has the public functions.
"""
